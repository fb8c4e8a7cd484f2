//! The moving average of the weights (EMA).

use enmasse_graph::Scaling;
use enmasse_graph::ops::Average;

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::average;
use crate::work::Span;

impl OnCuda for Average {
    /// One launch for each pair of neighbouring ranges.
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        let (ids, scaling) = match o.node.inputs[..] {
            [ref ids @ .., unscale, skipped_steps] if self.scaled => (ids, Some(Scaling { unscale, skipped_steps })),
            ref ids => (ids, None),
        };
        let scaling = scaling.map(|scaling| o.scaling(scaling));
        let count = ids.len() / 2;
        let mut joined: Vec<(Span, Span)> = Vec::new();
        for (value, moved) in (0..count).map(|index| (o.input(index), o.input(count + index))) {
            match joined.last_mut() {
                // Gaps are zero on both sides and stay so.
                Some((values, averages)) if values.is_before(value) && averages.is_before(moved) => {
                    (*values, *averages) = (values.hull(value), averages.hull(moved));
                }
                _ => joined.push((value, moved)),
            }
        }
        let average = |(values, averages)| average::average(self.decay, values, averages, scaling);
        Ok(computed(joined.into_iter().map(average)))
    }
}
