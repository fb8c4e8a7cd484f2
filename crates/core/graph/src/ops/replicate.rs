//! Copies from the first rank to the others.

use std::ops::Range;

use super::Operation;

/// Copies the values of the first rank to all others, in place; of a program that hosts several shards with values of their
/// own, those of its first shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Replicate;

impl Operation for Replicate {
    const NAME: &'static str = "replicate";
    const SIGNATURE: &'static str = "(values..) -> ()";
    const PYTORCH: Option<&'static str> = Some("torch.distributed.broadcast");

    fn changes(&self, inputs: usize) -> Range<usize> {
        0..inputs
    }
}
