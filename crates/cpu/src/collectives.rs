//! The instructions in which all ranks take part, and the check of what they have found together.

use enmasse_comm::{Group, tree_fold};
use enmasse_device::DeviceError;

use crate::instruction::Machine;
use crate::region::Region;
use crate::scratch::Scratch;
use crate::statistics::Moments;

type F32 = Region<f32>;

fn group(machine: &Machine) -> Result<&Group, DeviceError> {
    let missing = || DeviceError::Unsupported("the plan has collectives, but the program has no group".into());
    machine.group.as_ref().ok_or_else(missing)
}

/// Scratch of [`sync_statistics`].
pub(crate) fn statistics_scratch(channels: usize, shards: usize) -> Scratch {
    Scratch { shared: 2 * channels * (shards + 1), private: 0 }
}

/// Mean and biased variance over the pixels of all shards, `count` on each.
///
/// # Safety
/// Regions are valid, of as many channels; `all` is written.
pub(crate) unsafe fn sync_statistics(
    machine: &Machine,
    count: usize,
    shards: usize,
    own: Moments,
    all: Moments,
) -> Result<(), DeviceError> {
    let channels = own.mean.len();
    let packed = pack(machine.context.shared, [own.mean, own.variance]);
    // SAFETY: the caller's promise; the scratch is this instruction's.
    let gathered = unsafe { machine.context.shared.slice_mut(2 * channels, 2 * channels * shards) };
    group(machine)?.all_gather(packed, gathered)?;
    for channel in 0..channels {
        let (mean, variance) = combine(gathered, channel, channels, shards, count);
        // SAFETY: the caller's promise.
        unsafe { (*all.mean.at(channel, 1), *all.variance.at(channel, 1)) = (mean, variance) };
    }
    Ok(())
}

/// Sums of two tensors over all shards. Scratch: both.
///
/// # Safety
/// Regions are valid and as long as each other; `sums` are written.
pub(crate) unsafe fn sync_sum(machine: &Machine, values: [F32; 2], sums: [F32; 2]) -> Result<(), DeviceError> {
    let packed = pack(machine.context.shared, values);
    group(machine)?.all_reduce(packed)?;
    let (first, second) = packed.split_at(packed.len() / 2);
    for (sum, from) in sums.iter().zip([first, second]) {
        // SAFETY: the caller's promise.
        unsafe { sum.slice_mut(0, sum.len()) }.copy_from_slice(from);
    }
    Ok(())
}

/// Starts the sum of one bucket over all ranks.
///
/// # Safety
/// No instruction touches the range before [`all_reduce_wait`].
pub(crate) unsafe fn all_reduce_start(machine: &mut Machine, bucket: usize, range: F32) -> Result<(), DeviceError> {
    // SAFETY: the caller's promise; the program waits for handles before its memory goes.
    let handle = unsafe { group(machine)?.all_reduce_start(range.at(0, range.len()), range.len()) };
    machine.handles[bucket] = Some(handle);
    Ok(())
}

/// Waits for it.
pub(crate) fn all_reduce_wait(machine: &mut Machine, bucket: usize) -> Result<(), DeviceError> {
    if let Some(handle) = machine.handles[bucket].take() {
        handle.wait()?;
    }
    Ok(())
}

/// The first loss that is not finite is an error.
///
/// # Safety
/// The region is valid.
pub(crate) unsafe fn check_finite(losses: F32) -> Result<(), DeviceError> {
    // SAFETY: the caller's promise.
    let losses = unsafe { losses.slice(0, losses.len()) };
    match losses.iter().position(|loss| !loss.is_finite()) {
        Some(shard) => Err(DeviceError::NonFinite { shard, loss: losses[shard].into() }),
        None => Ok(()),
    }
}

/// Puts two tensors one after the other at the start of the scratch.
fn pack<'a>(scratch: F32, values: [F32; 2]) -> &'a mut [f32] {
    let channels = values[0].len();
    // SAFETY: the scratch is the running instruction's, and large enough; the values are valid.
    unsafe {
        let packed = scratch.slice_mut(0, 2 * channels);
        for (to, from) in packed.chunks_exact_mut(channels.max(1)).zip(values) {
            to.copy_from_slice(from.slice(0, channels));
        }
        packed
    }
}

/// Mean and biased variance over all shards, from each shard's `[mean, variance]` of `count` values.
///
/// Source: T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating formulae and a pairwise algorithm for computing sample
/// variances", 1979.
fn combine(gathered: &[f32], channel: usize, channels: usize, shards: usize, count: usize) -> (f32, f32) {
    let value = |shard: usize, row: usize| f64::from(gathered[(2 * shard + row) * channels + channel]);
    let mut leaf = |shard| (count as f64, value(shard, 0), value(shard, 1) * count as f64);
    let mut join = |(n, mean, m2): (f64, f64, f64), (other_n, other_mean, other_m2): (f64, f64, f64)| {
        let (total, delta) = (n + other_n, other_mean - mean);
        (total, mean + delta * other_n / total, m2 + other_m2 + delta * delta * n * other_n / total)
    };
    let (n, mean, m2) = tree_fold(shards, &mut leaf, &mut join).unwrap_or((1.0, 0.0, 0.0));
    (mean as f32, (m2 / n) as f32)
}
