//! The moving average of the weights (EMA).

use enmasse_graph::Scaling;
use enmasse_graph::ops::Average;

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::average;
use crate::work::Span;

impl OnCuda for Average {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        let (ids, scaling) = match o.node.inputs[..] {
            [ref ids @ .., unscale, skipped_steps] if self.scaled => (ids, Some(Scaling { unscale, skipped_steps })),
            ref ids => (ids, None),
        };
        let scaling = scaling.map(|scaling| o.scaling(scaling));
        let average = |(values, averages)| average::average(self.decay, values, averages, scaling);
        Ok(computed(ranges(o, ids.len() / 2).into_iter().map(average)))
    }
}

/// The first operands, which are so many values and then their averages, as pairs of ranges. Neighbours are one range.
pub(super) fn ranges(o: &Operands, count: usize) -> Vec<(Span, Span)> {
    let mut joined: Vec<(Span, Span)> = Vec::new();
    for (value, average) in (0..count).map(|index| (o.input(index), o.input(count + index))) {
        match joined.last_mut() {
            // Gaps are zero on both sides and stay so.
            Some((values, averages)) if values.is_before(value) && averages.is_before(average) => {
                (*values, *averages) = (values.hull(value), averages.hull(average));
            }
            _ => joined.push((value, average)),
        }
    }
    joined
}
