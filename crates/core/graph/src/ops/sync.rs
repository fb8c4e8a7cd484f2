//! SyncBatchNorm: statistics and sums over all shards.

use super::Operation;

/// Mean and variance over the pixels of all shards (`count` on each): Chan's formula on (count, mean, M2 = variance * count) in
/// the fixed tree over shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SyncStatistics {
    /// Pixels on each shard.
    pub count: usize,
}

impl Operation for SyncStatistics {
    const NAME: &'static str = "sync_statistics";
    const SIGNATURE: &'static str = "(mean [C], variance [C]) -> (mean [C], variance [C])";
    const PYTORCH: Option<&'static str> = Some("torch.nn.SyncBatchNorm");

    fn attributes(&self) -> String {
        format!("count {}", self.count)
    }

    fn is_joint(&self) -> bool {
        true
    }
}

/// Both sums over all shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SyncSum;

impl Operation for SyncSum {
    const NAME: &'static str = "sync_sum";
    const SIGNATURE: &'static str = "(a [C], b [C]) -> (sum of a, sum of b)";

    fn is_joint(&self) -> bool {
        true
    }
}
