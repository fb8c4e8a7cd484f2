//! The end of an update that is cut over ranks.

use std::ops::Range;

use super::Operation;

/// Copies the part of each rank to all others: of the parameters whose gradients are in one bucket, which are the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AllGather {
    /// Index in [`crate::Plan::buckets`], and in [`crate::Partition::borders`].
    pub bucket: usize,
}

impl Operation for AllGather {
    const NAME: &'static str = "all_gather";
    const SIGNATURE: &'static str = "(parameters..) -> ()";

    fn attributes(&self) -> String {
        format!("bucket {}", self.bucket)
    }

    fn changes(&self, inputs: usize) -> Range<usize> {
        0..inputs
    }
}
