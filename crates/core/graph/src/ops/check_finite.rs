//! The check of the loss between backward and update.

use super::Operation;

/// Fails the step if a loss is not finite, naming the shard. No later instruction runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CheckFinite;

impl Operation for CheckFinite {
    const NAME: &'static str = "check_finite";
    const SIGNATURE: &'static str = "(metrics [shards + 1 + n + 2]) -> ()";
}
