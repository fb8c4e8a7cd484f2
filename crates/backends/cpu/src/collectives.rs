//! The instructions in which all shards take part, on this rank and on the others, and the check of their combined
//! results.

use std::ops::Range;

use enmasse_comm::{Compression, Fold, ShardMap, tree_fold};
use enmasse_device::{DeviceError, first_non_finite};
use enmasse_graph::Plan;

use crate::elementwise;
use crate::instruction::Machine;
use crate::region::Region;
use crate::statistics::Moments;
use crate::workspace::Workspace;

type F32 = Region<f32>;

/// Mean and biased variance over the pixels of all shards, with `count` pixels each.
#[derive(Debug)]
pub(crate) struct StatisticsExchange {
    count: usize,
    /// The moments of each local shard.
    own: Vec<Moments>,
    /// Where each local shard stores the result.
    all: Vec<Moments>,
    /// Number of shards that the first rank hosts. No rank hosts more.
    most: usize,
    ranks: usize,
    /// The place of each shard among the gathered moments. Every rank has `most` places there.
    places: Vec<usize>,
}

impl StatisticsExchange {
    pub(crate) fn new(map: &ShardMap, count: usize, own: Vec<Moments>, all: Vec<Moments>) -> Self {
        let ranks = map.ranks();
        let most = map.local(0).len();
        let places = (0..ranks).flat_map(|rank| (0..map.local(rank).len()).map(move |local| rank * most + local));
        StatisticsExchange { count, own, all, most, ranks, places: places.collect() }
    }

    fn channels(&self) -> usize {
        self.own[0].mean.len()
    }

    /// Workspace for the moments that this rank sends, and for those of all ranks.
    pub(crate) fn workspace(&self) -> Workspace {
        Workspace { shared: 2 * self.channels() * self.most * (1 + self.ranks), private: 0 }
    }

    /// Exchanges the moments and combines them.
    ///
    /// # Safety
    /// Regions are valid, with the same number of channels; `all` is written.
    pub(crate) unsafe fn run(&self, machine: &Machine) -> Result<(), DeviceError> {
        let channels = self.channels();
        let size = 2 * channels;
        let workspace = machine.context.shared;
        // SAFETY: the workspace is the running instruction's, and large enough.
        let packed = unsafe { workspace.slice_mut(0, self.most * size) };
        let values = self.own.iter().flat_map(|own| [own.mean, own.variance]);
        for (packed, value) in packed.chunks_exact_mut(channels.max(1)).zip(values) {
            // SAFETY: the caller's promise.
            packed.copy_from_slice(unsafe { value.slice(0, channels) });
        }
        let gathered: &[f32] = match &machine.groups.replicas {
            Some(group) => {
                // SAFETY: as above, after the sent part.
                let gathered = unsafe { workspace.slice_mut(self.most * size, self.ranks * self.most * size) };
                group.all_gather(packed, gathered)?;
                gathered
            }
            None => packed,
        };
        for channel in 0..channels {
            let (mean, variance) = self.combine(gathered, channel, channels);
            for all in &self.all {
                // SAFETY: the caller's promise.
                unsafe { (*all.mean.at(channel, 1), *all.variance.at(channel, 1)) = (mean, variance) };
            }
        }
        Ok(())
    }

    /// Mean and biased variance over all shards, from each shard's `[mean, variance]` of `count` values.
    ///
    /// Source: T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating formulae and a pairwise algorithm for computing sample
    /// variances", 1979.
    fn combine(&self, gathered: &[f32], channel: usize, channels: usize) -> (f32, f32) {
        let count = self.count as f64;
        let value = |shard: usize, row: usize| f64::from(gathered[(2 * self.places[shard] + row) * channels + channel]);
        let mut leaf = |shard| (count, value(shard, 0), value(shard, 1) * count);
        let mut join = |(n, mean, m2): (f64, f64, f64), (other_n, other_mean, other_m2): (f64, f64, f64)| {
            let total = n + other_n;
            let delta = other_mean - mean;
            (total, mean + delta * other_n / total, m2 + other_m2 + delta * delta * n * other_n / total)
        };
        let (n, mean, m2) = tree_fold(self.places.len(), &mut leaf, &mut join).unwrap_or((1.0, 0.0, 0.0));
        (mean as f32, (m2 / n) as f32)
    }
}

/// Sums of two tensors over all shards.
#[derive(Debug)]
pub(crate) struct SumExchange {
    pub shards: usize,
    /// The local shards of each partial sum that this rank contributes, as indices among the local shards.
    pub partials: Vec<Range<usize>>,
    /// Both tensors of each local shard.
    pub values: [Vec<F32>; 2],
    /// Where each local shard stores the results.
    pub sums: [Vec<F32>; 2],
}

impl SumExchange {
    fn channels(&self) -> usize {
        self.values[0][0].len()
    }

    /// Workspace for both tensors, for each partial sum.
    pub(crate) fn workspace(&self) -> Workspace {
        Workspace { shared: 2 * self.channels() * self.partials.len(), private: 0 }
    }

    /// Exchanges the partial sums and adds them.
    ///
    /// # Safety
    /// Regions are valid and equally long; `sums` are written.
    pub(crate) unsafe fn run(&self, machine: &Machine) -> Result<(), DeviceError> {
        let channels = self.channels();
        let size = 2 * channels;
        // SAFETY: the workspace is the running instruction's, and large enough.
        let packed = unsafe { machine.context.shared.slice_mut(0, self.partials.len() * size) };
        for (packed, partial) in packed.chunks_exact_mut(size.max(1)).zip(&self.partials) {
            for (row, packed) in packed.chunks_exact_mut(channels.max(1)).enumerate() {
                for (channel, sum) in packed.iter_mut().enumerate() {
                    // SAFETY: the caller's promise.
                    let mut leaf = |at: usize| unsafe { *self.values[row][partial.start + at].at(channel, 1) };
                    *sum = tree_fold(partial.len(), &mut leaf, &mut |a, b| a + b).unwrap_or(0.0);
                }
            }
        }
        if let Some(group) = &machine.groups.replicas {
            group.all_reduce_shards(packed, size, size, self.shards)?;
        }
        for (row, from) in packed[..size].chunks_exact(channels.max(1)).enumerate() {
            for sum in &self.sums[row] {
                // SAFETY: the caller's promise.
                unsafe { sum.slice_mut(0, channels) }.copy_from_slice(from);
            }
        }
        Ok(())
    }
}

/// Which ranks get a sum.
#[derive(Clone, Debug)]
pub(crate) enum Receivers {
    All,
    /// All, where values cross between nodes in 16 bits; and what this rank has lost of the bucket.
    AllCompressed(Compression, F32),
    First,
    /// Each its part, and where the parts end.
    Parts(Vec<usize>),
}

/// A local shard's part in the sum of one bucket over all shards.
#[derive(Debug)]
pub(crate) struct BucketSum {
    pub bucket: usize,
    /// The bucket in the first gradient arena.
    pub start: F32,
    /// Number of values from one gradient arena to the next.
    pub stride: usize,
    pub shards: usize,
    pub receivers: Receivers,
    /// The additions that become possible once this shard's gradients are complete.
    pub folds: Vec<Fold>,
    /// Whether this is the last local shard.
    pub is_last: bool,
}

impl BucketSum {
    /// Adds up the complete subtrees, and after the last local shard starts the sum over all ranks.
    ///
    /// # Safety
    /// Gradient arenas are valid; no instruction touches the range before [`all_reduce_wait`].
    pub(crate) unsafe fn run(&self, machine: &mut Machine) -> Result<(), DeviceError> {
        let len = self.start.len();
        let of_slot = |slot: usize| Region::new(self.start.at(0, len).wrapping_add(slot * self.stride), len);
        for fold in &self.folds {
            let (into, from) = (of_slot(fold.into), of_slot(fold.from));
            // SAFETY: the caller's promise; the slots differ.
            unsafe { elementwise::add(&mut machine.context, into, from, into) };
        }
        if let (true, Some(group)) = (self.is_last, &machine.groups.replicas) {
            let start = self.start.at(0, len);
            let stride = self.stride;
            let shards = self.shards;
            // SAFETY: the caller's promise; the program waits for handles before its memory goes, and its instructions.
            let handle = unsafe {
                match &self.receivers {
                    Receivers::All => group.all_reduce_shards_start(start, len, stride, shards),
                    Receivers::AllCompressed(to, residual) => {
                        let residual = residual.at(0, len);
                        group.all_reduce_shards_compressed_start(start, len, stride, shards, *to, residual)
                    }
                    Receivers::First => group.reduce_shards_start(start, len, stride, shards, 0),
                    Receivers::Parts(ends) => group.reduce_scatter_parts_start(start, len, stride, shards, ends),
                }
            };
            machine.handles[self.bucket] = Some(handle);
        }
        Ok(())
    }
}

/// Waits for the sum of `bucket`.
pub(crate) fn all_reduce_wait(machine: &mut Machine, bucket: usize) -> Result<(), DeviceError> {
    if let Some(handle) = machine.handles[bucket].take() {
        handle.wait()?;
    }
    Ok(())
}

/// Values, with those that lie one after another in an arena as one range.
pub(crate) fn adjacent(values: Vec<F32>) -> Vec<F32> {
    let mut ranges: Vec<F32> = Vec::new();
    for value in values {
        let gap = |last: &F32| (value.at(0, 0) as usize).checked_sub(last.at(0, 0) as usize);
        // A value begins where the last one ends, rounded up.
        let follows =
            |last: &&mut F32| gap(last) == Some((last.len() * size_of::<f32>()).next_multiple_of(Plan::ALIGNMENT));
        match ranges.last_mut().filter(follows) {
            Some(last) => *last = Region::new(last.at(0, 0), gap(last).unwrap_or(0) / size_of::<f32>() + value.len()),
            None => ranges.push(value),
        }
    }
    ranges
}

/// Copies ranges of the first rank to all others.
///
/// # Safety
/// The regions are valid.
pub(crate) unsafe fn replicate(machine: &Machine, ranges: &[F32]) -> Result<(), DeviceError> {
    let Some(group) = &machine.groups.replicas else { return Ok(()) };
    for range in ranges {
        // SAFETY: the caller's promise.
        group.broadcast(unsafe { range.slice_mut(0, range.len()) }, 0)?;
    }
    Ok(())
}

/// Copies each rank's part of a range to all others.
///
/// # Safety
/// The region is valid.
pub(crate) unsafe fn all_gather(machine: &Machine, range: F32, ends: &[usize]) -> Result<(), DeviceError> {
    let Some(group) = &machine.groups.replicas else { return Ok(()) };
    // SAFETY: the caller's promise.
    Ok(group.all_gather_parts(unsafe { range.slice_mut(0, range.len()) }, ends)?)
}

/// Adds up what ranks have found that update a part each. Only one of them has a number that is not zero, so nothing is rounded.
///
/// # Safety
/// The region is valid.
pub(crate) unsafe fn add_up(machine: &Machine, numbers: Region<f64>) -> Result<(), DeviceError> {
    let Some(group) = &machine.groups.replicas else { return Ok(()) };
    // SAFETY: the caller's promise.
    Ok(group.all_reduce(unsafe { numbers.slice_mut(0, numbers.len()) })?)
}

/// Returns an error that names the first non-finite loss.
///
/// # Safety
/// The region is valid.
pub(crate) unsafe fn check_finite(losses: F32) -> Result<(), DeviceError> {
    // SAFETY: the caller's promise.
    let losses = unsafe { losses.slice(0, losses.len()) };
    match first_non_finite(losses.iter().map(|&loss| loss.into())) {
        Some((shard, loss)) => Err(DeviceError::NonFinite { shard, loss }),
        None => Ok(()),
    }
}
