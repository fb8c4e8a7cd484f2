//! SyncBatchNorm: statistics and sums over all shards. `kernels/sync.cu` combines those of one program.

use enmasse_graph::ops::{SyncStatistics, SyncSum};

use super::{Lowered, Lowering, OnCuda, Operands, Placed, computed};
use crate::kernels::gather::{gather_rows, scatter_rows};
use crate::kernels::operands::{SCRATCH, count, float_count, floats};
use crate::kernels::{blocks, kernel};
use crate::sequence::{Call, Collective, Joins};
use crate::way::Way;
use crate::work::Argument::{Read, Write};
use crate::work::{Kernel, Span};

/// Combines pairs of rows of several shards, and gives the result to others.
type Combine = fn(&[[Span; 2]], &[[Span; 2]]) -> Vec<Kernel>;

impl OnCuda for SyncStatistics {
    fn lower(&self, o: &Operands, lowering: &mut Lowering) -> Lowered {
        Ok(of_all_shards(o, lowering, sync_statistics))
    }
}

impl OnCuda for SyncSum {
    /// By way of the host ranks exchange partial sums.
    fn lower(&self, o: &Operands, lowering: &mut Lowering) -> Lowered {
        if !lowering.are_several() || matches!(lowering.way, Way::Nccl(_)) {
            return Ok(of_all_shards(o, lowering, sync_sum));
        }
        let (own, results) = pairs_of_all(o);
        let kernels = |of: &[[Span; 2]], to: &[[Span; 2]]| sync_sum(of, to).into_iter().map(Call::Kernel);
        let channels = channels(&own);
        let partials = &o.places.schedule.partials;
        let all = floats(SCRATCH, scratch_floats(own.len(), channels), partials.len() * 2 * channels);
        let of_partial: Vec<[Span; 2]> = (0..partials.len()).map(|at| pair(all, 2 * channels * at, channels)).collect();
        let mut calls: Vec<Call> = Vec::new();
        for (partial, to) in partials.iter().zip(&of_partial) {
            calls.extend(kernels(&own[partial.clone()], &[*to]));
        }
        let whole = |[first, second]: [Span; 2]| first.hull(second);
        let from = of_partial.iter().map(|&pair| whole(pair)).collect();
        calls.push(Call::Exchange(lowering.exchange(Joins::Sum, from, whole(of_partial[0]))));
        calls.extend(kernels(&of_partial[..1], &results));
        Ok(computed(calls))
    }
}

/// What all shards together make of two rows of each. Every rank gathers the rows of all, and combines them itself.
fn of_all_shards(o: &Operands, lowering: &mut Lowering, combine: Combine) -> Vec<Placed> {
    let (own, results) = pairs_of_all(o);
    let kernels = |of_shards: &[[Span; 2]]| computed(combine(of_shards, &results));
    if !lowering.are_several() {
        return kernels(&own);
    }
    let map = *lowering.map();
    let channels = channels(&own);
    let ranks = map.ranks();
    let most = map.local(0).len();
    let all = floats(SCRATCH, scratch_floats(map.shards(), channels), ranks * most * 2 * channels);
    let place = |rank: usize, local: usize| 2 * channels * (rank * most + local);
    let of_shards = (0..ranks).flat_map(|rank| (0..map.local(rank).len()).map(move |local| (rank, local)));
    let of_shards: Vec<[Span; 2]> = of_shards.map(|(rank, local)| pair(all, place(rank, local), channels)).collect();
    let mut calls = match lowering.way {
        Way::Host => {
            let each = most * 2 * channels * size_of::<f32>();
            let exchange = lowering.exchange(Joins::Gather { each }, own.as_flattened().to_vec(), all);
            computed([Call::Exchange(exchange)])
        }
        Way::Nccl(_) => {
            let from = floats(all.place, place(lowering.hosting.rank(), 0), own.len() * 2 * channels);
            let gather = Call::Collective(Collective::AllGather { from, to: all, ranks });
            let rows = computed(gather_rows(own.as_flattened(), from.place));
            [rows, lowering.aside_at_once([gather])].concat()
        }
    };
    calls.extend(kernels(&of_shards));
    calls
}

/// The first two operands of every local shard, and its first two results.
fn pairs_of_all(o: &Operands) -> (Vec<[Span; 2]>, Vec<[Span; 2]>) {
    let of_all = (0..o.places.schedule.shards.len()).map(|local| Operands { local, ..*o });
    of_all.map(|o| ([o.input(0), o.input(1)], [o.output(0), o.output(1)])).unzip()
}

fn channels(pairs: &[[Span; 2]]) -> usize {
    pairs.first().map_or(0, |[first, _]| first.bytes / size_of::<f32>())
}

/// Two neighbouring pieces of `count` floats each, from float `at` of a range.
fn pair(range: Span, at: usize, count: usize) -> [Span; 2] {
    [at, at + count].map(|at| floats(range.place, at, count))
}

/// Mean and biased variance `[C]` over the pixels of all shards, of which all have equally many, from those of each shard.
/// Every shard gets the result.
fn sync_statistics(of_shards: &[[Span; 2]], results: &[[Span; 2]]) -> Vec<Kernel> {
    sync("sync_statistics", of_shards, results, 1)
}

/// The sums of two tensors `[C]` over all shards. Every shard gets them.
fn sync_sum(of_shards: &[[Span; 2]], sums: &[[Span; 2]]) -> Vec<Kernel> {
    sync("sync_sum", of_shards, sums, 2)
}

/// Floats of scratch that either takes.
fn scratch_floats(shards: usize, channels: usize) -> usize {
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
