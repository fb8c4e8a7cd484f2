//! What shards tell each other about a step, and the check of their losses: `kernels/metrics.cu`.

use super::gather::gather_rows;
use super::operands::{FAILURE, STEP, count, float_count, floats, one_block};
use crate::work::Argument::{Change, Read, Write};
use crate::work::{Kernel, Span};

/// This shard's part of the metrics `[shards + n + 2]`: its loss, the n `numbers`, and whether the step was told to stop
/// and to save.
pub(crate) fn share_metrics(shard: usize, shards: usize, loss: Span, numbers: &[Span], metrics: Span) -> Vec<Kernel> {
    let part = |start: usize, elements: usize| Write(floats(metrics.place, start, elements));
    let arguments =
        vec![Read(loss), STEP, part(0, shards), part(shards + numbers.len(), 2), count(shards), count(shard)];
    let mut kernels = gather_rows(numbers, floats(metrics.place, shards, numbers.len()).place);
    kernels.push(one_block("share_loss", arguments));
    kernels
}

/// Records the first of the `losses` of all shards that is not finite, unless there is a record.
pub(crate) fn check_finite(losses: Span) -> Kernel {
    let arguments = vec![Read(losses), Change(FAILURE), count(float_count(losses))];
    one_block("check_finite", arguments)
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
