//! Mean and variance of each channel.

use crate::element::Element;
use crate::inlined::inlined;
use crate::isa::{Simd, values_ahead};
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
    let (isa, partial, step) = (context.isa, context.shared, sweep::block_rows(channels));
    let (blocks, private) = (rows.div_ceil(step), &context.private);
    let count = |block: usize| step.min(rows - block * step);
    context.pool.run(blocks, |block, thread| {
        let (first, count) = (block * step, count(block));
        let (pivot, sums) = (private[thread].part(0, channels), partial.part(2 * block * channels, 2 * channels));
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
    sweep::finish_blocks(&mut context.pool, channels, |range| {
        // SAFETY: blocks are complete, and only read here.
        let of = |block: usize, i: usize| unsafe {
            partial.slice((2 * block + i) * channels + range.start, range.len()).iter().map(|&value| f64::from(value))
        };
        let (mut means, mut squares) = ([0.0f64; sweep::FINISH_CHANNELS], [0.0f64; sweep::FINISH_CHANNELS]);
        for block in 0..blocks {
            let count = count(block) as f64;
            means.iter_mut().zip(of(block, 0)).for_each(|(sum, mean)| *sum += count * mean);
        }
        means.iter_mut().for_each(|mean| *mean /= rows as f64);
        for block in 0..blocks {
            let count = count(block) as f64;
            for (((sum, mean), own), square) in squares.iter_mut().zip(&means).zip(of(block, 0)).zip(of(block, 1)) {
                *sum += square + count * (own - mean).powi(2);
            }
        }
        for ((mean, squares), channel) in means.into_iter().zip(squares).zip(range.clone()) {
            // SAFETY: each channel is written once.
            unsafe {
                *moments.mean.at(channel, 1) = mean as f32;
                *moments.variance.at(channel, 1) = (squares / rows as f64) as f32;
            }
        }
    });
}
