//! The slow weights of Lookahead.

use std::ops::Range;

use super::Operation;

/// In a step that has an `alpha`: `slow = value = value + (1 - alpha) * (slow - value)`. In other steps nothing changes.
///
/// M. Zhang et al., "Lookahead Optimizer: k steps forward, 1 step back", 2019. Running statistics take part, as in K. Jordan's
/// airbench94. The alpha is one of the inputs of a step, as the learning rate is. A step that loss scaling skips takes part too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lookahead;

impl Operation for Lookahead {
    const NAME: &'static str = "lookahead";
    const SIGNATURE: &'static str = "(values.., slow..) -> ()";

    fn changes(&self, inputs: usize) -> Range<usize> {
        0..inputs
    }
}
