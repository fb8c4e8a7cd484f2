//! What a shard tells all ranks with the last bucket of gradients.

use super::Operation;

/// The first `shards` elements are zeros, except for this shard's loss at its own index. Its n numbers follow: that of its correct
/// samples, if there are classes, and its metrics. Then comes 1 if the step was told to stop, and 1 if it was told to save a
/// checkpoint. The sum over shards holds every shard's loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShareMetrics {
    /// Number of shards.
    pub shards: usize,
}

impl Operation for ShareMetrics {
    const NAME: &'static str = "share_metrics";
    const SIGNATURE: &'static str = "(loss [1], correct? [1], metrics [1]..) -> (metrics [shards + n + 2])";

    fn attributes(&self) -> String {
        format!("shards {}", self.shards)
    }
}
