//! Mean and variance of each channel.

use std::ops::Range;

use crate::conv::Epilogue;
use crate::element::Element;
use crate::inlined::inlined;
use crate::isa::{Isa, Simd, values_ahead};
use crate::pool::Pool;
use crate::region::Region;
use crate::sweep::{self, Rows, Sum, Terms};
use crate::workspace::Context;

/// Mean and variance of each channel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moments {
    pub mean: Region<f32>,
    pub variance: Region<f32>,
}

/// Deviations from a given value of each channel, and their squares.
#[derive(Clone, Copy)]
struct Deviations<E> {
    x: Region<E>,
    from: Region<f32>,
}

impl<E: Element> Terms<2> for Deviations<E> {
    const BF16: bool = E::BF16;

    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, channel: usize) -> [S::V; 2] {
            let deviation = S::sub(E::load::<S>(self.x.at(index, S::LANES)), S::load(self.from.at(channel, S::LANES)));
            [deviation, S::mul(deviation, deviation)]
        }
    }

    #[inline(always)]
    fn prefetch(&self, index: usize, count: usize) {
        self.x.prefetch(index, values_ahead::<E>(), count);
    }
}

/// Number of rows whose mean is the pivot of a block.
const PIVOT_ROWS: usize = 4;

/// Mean and biased variance of each channel, in one pass over memory. A block adds up deviations from the mean of its
/// first rows, and their squares. That mean lies among the block's values, so a large mean costs no accuracy. Blocks
/// are combined by Chan's formula.
///
/// # Safety
/// Regions are valid, of `size`; `moments` is written.
pub(crate) unsafe fn statistics<E: Element>(context: &mut Context, size: Rows, x: Region<E>, moments: Moments) {
    let Rows { rows, channels } = size;
    let isa = context.isa;
    let partial = context.shared;
    let step = sweep::block_rows(channels);
    let blocks = rows.div_ceil(step);
    let private = &context.private;
    let count = |block: usize| step.min(rows - block * step);
    context.pool.run(blocks, |block, thread| {
        let first = block * step;
        let count = count(block);
        let pivot = private[thread].part(0, channels);
        let sums = partial.part(2 * block * channels, 2 * channels);
        // SAFETY: the caller's promise; each block has its own place, and each thread its own workspace.
        unsafe {
            let pivots = count.min(PIVOT_ROWS);
            sweep::sum_block(isa, first..first + pivots, channels, &Sum { x }, pivot);
            pivot.slice_mut(0, channels).iter_mut().for_each(|sum| *sum /= pivots as f32);
            sweep::sum_block(isa, first..first + count, channels, &Deviations { x, from: pivot }, sums);
            // Convert to the block's mean, and squared deviations from that.
            let (means, squares) = sums.slice_mut(0, 2 * channels).split_at_mut(channels);
            for ((mean, square), pivot) in means.iter_mut().zip(squares).zip(pivot.slice(0, channels)) {
                let sum = *mean;
                *square -= sum * sum / count as f32;
                *mean = pivot + sum / count as f32;
            }
        }
    });
    combine(&mut context.pool, size, blocks, moments, |block, channel| {
        // SAFETY: blocks are complete, and only read here.
        let [mean, squares] = [0, 1].map(|i| unsafe { *partial.at((2 * block + i) * channels + channel, 1) }.into());
        [count(block) as f64, mean, squares]
    });
}

/// Writes the moments of all blocks. Of a block, `of` has for a channel the number of rows, their mean, and the sum of squared deviations
/// from that.
fn combine(pool: &mut Pool, size: Rows, blocks: usize, moments: Moments, of: impl Fn(usize, usize) -> [f64; 3] + Sync) {
    sweep::finish_blocks(pool, size.channels, |range| {
        let mut means = [0.0f64; sweep::FINISH_CHANNELS];
        let mut squares = [0.0f64; sweep::FINISH_CHANNELS];
        for block in 0..blocks {
            for (sum, channel) in means.iter_mut().zip(range.clone()) {
                let [count, mean, _] = of(block, channel);
                *sum += count * mean;
            }
        }
        means.iter_mut().for_each(|mean| *mean /= size.rows as f64);
        for block in 0..blocks {
            for ((sum, mean), channel) in squares.iter_mut().zip(&means).zip(range.clone()) {
                let [count, own, square] = of(block, channel);
                *sum += square + count * (own - mean).powi(2);
            }
        }
        for ((mean, squares), channel) in means.into_iter().zip(squares).zip(range.clone()) {
            // SAFETY: each channel is written once.
            unsafe {
                *moments.mean.at(channel, 1) = mean as f32;
                *moments.variance.at(channel, 1) = (squares / size.rows as f64) as f32;
            }
        }
    });
}

/// What is kept of a place for each channel: the pivot, the sums of deviations and of their squares, and the number of rows.
const KEPT: usize = 4;

/// The places of a tensor, each of whose rows has one of them.
struct Places<E> {
    x: Region<E>,
    channels: usize,
    kept: Region<f32>,
}

impl<E: Element> Epilogue for Places<E> {
    unsafe fn run(&self, isa: Isa, place: usize, rows: &[usize], channels: Range<usize>) {
        let kept = |i: usize, count: usize| self.kept.part((KEPT * place + i) * self.channels, count * self.channels);
        let (pivot, sums, counts) = (kept(0, 1), kept(1, 2), kept(3, 1));
        // SAFETY: the rows are complete, and no other code uses what is kept of these channels meanwhile.
        unsafe {
            let counts = counts.slice_mut(channels.start, channels.len());
            if counts[0] == 0.0 {
                let first = &rows[..rows.len().min(PIVOT_ROWS)];
                sweep::add_rows(isa, first, channels.clone(), &Sum { x: self.x }, pivot);
                let pivots = pivot.slice_mut(channels.start, channels.len());
                pivots.iter_mut().for_each(|sum| *sum /= first.len() as f32);
            }
            counts.iter_mut().for_each(|count| *count += rows.len() as f32);
            sweep::add_rows(isa, rows, channels, &Deviations { x: self.x, from: pivot }, sums);
        }
    }
}

/// Values of workspace for the statistics of rows that have `places` places.
pub(crate) fn workspace_of_places(places: usize, channels: usize) -> usize {
    KEPT * places * channels
}

/// As [`statistics`], of what `job` computes piece by piece. `kept` is workspace.
///
/// # Safety
/// As for [`statistics`]; no other code uses `kept`. The job gives each element of `x` to the epilogue once.
pub(crate) unsafe fn statistics_of_pieces<E: Element>(
    context: &mut Context,
    size: Rows,
    x: Region<E>,
    moments: Moments,
    kept: Region<f32>,
    job: impl FnOnce(&mut Context, &dyn Epilogue),
) {
    let channels = size.channels;
    let places = kept.len() / workspace_of_places(1, channels);
    let place = kept.len() / places;
    // SAFETY: the workspace is this instruction's; each place is written once.
    context.pool.run(places, |index, _| unsafe { kept.slice_mut(index * place, place) }.fill(0.0));
    job(context, &Places { x, channels, kept });
    combine(&mut context.pool, size, places, moments, |place, channel| {
        let of_place = |i: usize| -> f64 {
            // SAFETY: places are complete, and only read here.
            unsafe { *kept.at((KEPT * place + i) * channels + channel, 1) }.into()
        };
        let [pivot, sum, squares, count] = std::array::from_fn(of_place);
        // A place may have no rows.
        let mean = sum / count.max(1.0);
        [count, pivot + mean, squares - sum * mean]
    });
}
