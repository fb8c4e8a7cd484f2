//! What the shards of one program combine per channel: `kernels/sync.cu`.

use super::gather::{gather_rows, scatter_rows};
use super::operands::{SCRATCH, count, float_count, floats};
use super::{blocks, kernel};
use crate::work::Argument::{Read, Write};
use crate::work::{Kernel, Span};

/// Mean and biased variance `[C]` over the pixels of all shards, of which all have equally many, from those of each shard.
/// Every shard gets the result.
pub(crate) fn sync_statistics(of_shards: &[[Span; 2]], results: &[[Span; 2]]) -> Vec<Kernel> {
    sync("sync_statistics", of_shards, results, 1)
}

/// The sums of two tensors `[C]` over all shards. Every shard gets them.
pub(crate) fn sync_sum(of_shards: &[[Span; 2]], sums: &[[Span; 2]]) -> Vec<Kernel> {
    sync("sync_sum", of_shards, sums, 2)
}

/// Floats of scratch that either takes.
pub(crate) fn scratch_floats(shards: usize, channels: usize) -> usize {
    2 * (shards + 1) * channels
}

/// A thread takes one of `each * channels` values.
fn sync(name: &str, of_shards: &[[Span; 2]], results: &[[Span; 2]], each: usize) -> Vec<Kernel> {
    let channels = of_shards.first().map_or(0, |&[first, _]| float_count(first));
    let all = floats(SCRATCH, 0, 2 * of_shards.len() * channels);
    let result = floats(SCRATCH, 2 * of_shards.len() * channels, 2 * channels);
    let arguments = vec![Read(all), Write(result), count(of_shards.len()), count(channels)];
    let mut kernels = gather_rows(of_shards.as_flattened(), all.place);
    kernels.push(kernel(name, blocks(each * channels), arguments));
    kernels.extend(scatter_rows(result, results));
    kernels
}

#[cfg(test)]
#[path = "sync_tests.rs"]
mod tests;
