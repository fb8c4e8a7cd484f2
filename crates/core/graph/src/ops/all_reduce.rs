//! Sums of gradients over all ranks, in buckets. Each begins in one instruction and ends in another, and backward runs
//! between them.

use super::Operation;

/// Starts the sum over all ranks of one bucket of the gradient arena. The operands are the values in the bucket. They belong
/// to the collective until [`AllReduceWait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AllReduceStart {
    /// Index in [`crate::Plan::buckets`].
    pub bucket: usize,
}

/// Waits for the sum of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AllReduceWait {
    /// Index in [`crate::Plan::buckets`].
    pub bucket: usize,
}

/// [`AllReduceStart`] for the first rank alone. On the other ranks the values of the bucket are undefined afterwards. They
/// belong to the collective until [`ReduceWait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReduceStart {
    /// Index in [`crate::Plan::buckets`].
    pub bucket: usize,
}

/// Waits for the end of [`ReduceStart`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReduceWait {
    /// Index in [`crate::Plan::buckets`].
    pub bucket: usize,
}

/// [`AllReduceStart`] in which each rank gets the sums of its part alone ([`crate::Partition`]). The other values of the bucket are undefined
/// afterwards. They belong to the collective until [`ReduceScatterWait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReduceScatterStart {
    /// Index in [`crate::Plan::buckets`], and in [`crate::Partition::borders`].
    pub bucket: usize,
}

/// Waits for the end of [`ReduceScatterStart`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReduceScatterWait {
    /// Index in [`crate::Plan::buckets`].
    pub bucket: usize,
}

macro_rules! collective {
    ($operation:ident, $name:literal) => {
        impl Operation for $operation {
            const NAME: &'static str = $name;
            const SIGNATURE: &'static str = "(values..) -> ()";

            fn attributes(&self) -> String {
                format!("bucket {}", self.bucket)
            }
        }
    };
}

collective!(AllReduceStart, "all_reduce_start");
collective!(AllReduceWait, "all_reduce_wait");
collective!(ReduceStart, "reduce_start");
collective!(ReduceWait, "reduce_wait");
collective!(ReduceScatterStart, "reduce_scatter_start");
collective!(ReduceScatterWait, "reduce_scatter_wait");
