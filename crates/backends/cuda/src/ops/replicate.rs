//! Copies from the first rank to the others.

use enmasse_graph::ops::Replicate;

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::sequence::{Call, Collective, Joins};
use crate::way::Way;
use crate::work::Span;

impl OnCuda for Replicate {
    fn lower(&self, o: &Operands, lowering: &mut Lowering) -> Lowered {
        if !lowering.are_several() {
            return Ok(Vec::new());
        }
        let values = (0..o.node.inputs.len()).map(|index| o.input(index)).collect();
        let sends = lowering.hosting.rank() == 0;
        let ranges = adjacent(values);
        Ok(match lowering.way {
            Way::Host => {
                let exchange = |at: Span| {
                    let (from, to) = if sends { (vec![at], Span { bytes: 0, ..at }) } else { (Vec::new(), at) };
                    Call::Exchange(lowering.exchange(Joins::Broadcast, from, to))
                };
                computed(ranges.into_iter().map(exchange))
            }
            Way::Nccl(_) => {
                let copies = ranges.into_iter().map(|at| Call::Collective(Collective::Broadcast { at, sends }));
                lowering.aside_at_once(copies)
            }
        })
    }
}

/// Values, with those that lie one after another as one range.
fn adjacent(values: Vec<Span>) -> Vec<Span> {
    let mut ranges: Vec<Span> = Vec::new();
    for value in values {
        match ranges.last_mut().filter(|last| last.is_before(value)) {
            Some(last) => *last = last.hull(value),
            None => ranges.push(value),
        }
    }
    ranges
}
