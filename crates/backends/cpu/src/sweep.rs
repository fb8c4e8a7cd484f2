//! Passes over whole tensors at memory speed: element by element, and sums over all but the last dimension.
//!
//! Tensors are rows of channels. Tasks are blocks of whole rows, whose size depends only on the tensor. Partial sums of
//! blocks are added in block order, in f64. Therefore bits do not depend on the number of threads.

use std::ops::Range;

use crate::element::Element;
use crate::inlined::{each_vector, inlined};
use crate::isa::{Isa, Kernel, MAX_LANES, Scalar, Simd, dispatch, fence, four, values_ahead};
use crate::pool::Pool;
use crate::region::Region;
use crate::workspace::Context;

/// Values per task of an element-wise pass.
pub(crate) const TASK_VALUES: usize = 1 << 14;
/// Channels per task when partial sums are added.
pub(crate) const FINISH_CHANNELS: usize = 64;

/// Rows (batch x height x width) and channels of a tensor whose channels are summed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub rows: usize,
    pub channels: usize,
}

/// An operation on each element.
pub(crate) trait Pass: Sync {
    /// As in [`Kernel::BF16`].
    const BF16: bool;

    /// Processes the `LANES` elements from `index`, whose channels start at `channel`.
    ///
    /// # Safety
    /// The pass's memory is valid, and processing another element touches nothing that this call writes.
    /// `#[inline(always)]`.
    unsafe fn at<S: Simd>(&self, index: usize, channel: usize);

    /// Whether the pass has [`Pass::at_four`]. It pays where operations wait for each other rather than for memory.
    const FOUR: bool = false;

    /// As [`Pass::at`] for four vectors: `4 * LANES` elements.
    ///
    /// # Safety
    /// As for [`Pass::at`].
    #[inline(always)]
    unsafe fn at_four<S: Simd>(&self, index: usize, channel: usize) {
        for vector in (0..4 * S::LANES).step_by(S::LANES) {
            // SAFETY: the caller's promise.
            unsafe { self.at::<S>(index + vector, channel + vector) }
        }
    }
}

struct Block<'a, P> {
    pass: &'a P,
    start: usize,
    rows: usize,
    channels: usize,
}

impl<P: Pass> Kernel for Block<'_, P> {
    const BF16: bool = P::BF16;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for row in 0..self.rows {
            let start = self.start + row * self.channels;
            let fours = if P::FOUR { self.channels / (4 * S::LANES) } else { 0 };
            // SAFETY: the caller's promise, for every element of the block once.
            unsafe {
                for channel in (0..fours).map(|four| four * 4 * S::LANES) {
                    self.pass.at_four::<S>(start + channel, channel);
                }
                let rest = fours * 4 * S::LANES..self.channels;
                each_vector!(S, channel in rest => self.pass, at(start + channel, channel))
            }
        }
        fence();
    }
}

/// Runs a pass over `rows` rows of `channels`.
///
/// # Safety
/// As for [`Pass::at`], for every element.
pub(crate) unsafe fn by_channel<P: Pass>(context: &mut Context, rows: usize, channels: usize, pass: &P) {
    let isa = context.isa;
    let step = (TASK_VALUES / channels.max(1)).max(1);
    context.pool.run(rows.div_ceil(step), |task, _| {
        let first = task * step;
        let block = Block { pass, start: first * channels, rows: step.min(rows - first), channels };
        // SAFETY: the caller's promise; blocks are disjoint.
        unsafe { dispatch(isa, block) }
    });
}

/// Runs a pass over `len` values that have no channels.
///
/// # Safety
/// As for [`Pass::at`], for every element.
pub(crate) unsafe fn flat<P: Pass>(context: &mut Context, len: usize, pass: &P) {
    let isa = context.isa;
    context.pool.run(len.div_ceil(TASK_VALUES), |task, _| {
        let start = task * TASK_VALUES;
        let block = Block { pass, start, rows: 1, channels: TASK_VALUES.min(len - start) };
        // SAFETY: the caller's promise; blocks are disjoint.
        unsafe { dispatch(isa, block) }
    });
}

/// The elements of one task, part of one of several ranges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// Number of the range.
    pub range: usize,
    /// First element.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
}

impl Piece {
    /// Divides ranges into tasks.
    pub(crate) fn cut(ranges: impl IntoIterator<Item = Range<usize>>) -> Vec<Piece> {
        let pieces = |(range, elements): (usize, Range<usize>)| {
            let end = elements.end;
            elements.step_by(TASK_VALUES).map(move |start| Piece { range, start, len: TASK_VALUES.min(end - start) })
        };
        ranges.into_iter().enumerate().flat_map(pieces).collect()
    }
}

/// Runs over each piece the pass that `pass` makes for it.
///
/// # Safety
/// As for [`Pass::at`], for every element of the pieces, which do not overlap.
pub(crate) unsafe fn pieces<P: Pass>(context: &mut Context, pieces: &[Piece], pass: impl Fn(&Piece) -> P + Sync) {
    let isa = context.isa;
    context.pool.run(pieces.len(), |task, _| {
        let piece = &pieces[task];
        let block = Block { pass: &pass(piece), start: piece.start, rows: 1, channels: piece.len };
        // SAFETY: the caller's promise.
        unsafe { dispatch(isa, block) }
    });
}

/// The terms to sum over all rows: `N` for each element.
pub(crate) trait Terms<const N: usize>: Copy + Sync {
    /// As in [`Kernel::BF16`].
    const BF16: bool;

    /// The terms of the `LANES` elements from `index`, whose channels start at `channel`.
    ///
    /// # Safety
    /// The memory read is valid. `#[inline(always)]`.
    unsafe fn at<S: Simd>(&self, index: usize, channel: usize) -> [S::V; N];

    /// As [`Terms::at`], for the same channels of four rows.
    ///
    /// # Safety
    /// As for [`Terms::at`].
    #[inline(always)]
    unsafe fn at_four<S: Simd>(&self, rows: [usize; 4], channel: usize) -> [[S::V; N]; 4] {
        // SAFETY: the caller's promise.
        unsafe { four!(I => self.at::<S>(rows[I], channel)) }
    }

    /// Prefetches the operands of `count` elements at some distance after `index`. `#[inline(always)]`.
    fn prefetch(&self, index: usize, count: usize);
}

/// The values themselves.
#[derive(Clone, Copy)]
pub(crate) struct Sum<E> {
    pub x: Region<E>,
}

impl<E: Element> Terms<1> for Sum<E> {
    const BF16: bool = E::BF16;

    #[inline(always)]
    unsafe fn at<S: Simd>(&self, index: usize, _: usize) -> [S::V; 1] {
        // SAFETY: the caller's promise.
        unsafe { [E::load::<S>(self.x.at(index, S::LANES))] }
    }

    #[inline(always)]
    fn prefetch(&self, index: usize, count: usize) {
        self.x.prefetch(index, values_ahead::<E>(), count);
    }
}

/// The sums of terms over the channels of a row.
///
/// # Safety
/// As for [`Terms::at`].
#[inline(always)]
pub(crate) unsafe fn row_sums<const N: usize, S: Simd, T: Terms<N>>(
    terms: &T,
    row: usize,
    channels: usize,
) -> [f32; N] {
    let start = row * channels;
    let whole = channels - channels % S::LANES;
    // SAFETY: the caller's promise.
    unsafe {
        let mut vectors = [S::splat(0.0); N];
        for channel in (0..whole).step_by(S::LANES) {
            let found = terms.at::<S>(start + channel, channel);
            vectors = std::array::from_fn(|i| S::add(vectors[i], found[i]));
        }
        let mut sums = vectors.map(|vector| {
            let mut lanes = [0.0; MAX_LANES];
            S::store(lanes.as_mut_ptr(), vector);
            lanes.iter().sum()
        });
        for channel in whole..channels {
            let found = terms.at::<Scalar>(start + channel, channel);
            sums = std::array::from_fn(|i| sums[i] + found[i][0]);
        }
        sums
    }
}

/// Rows per block of a sum: some ten thousand values, which stay in the second-level cache for a second pass.
pub(crate) fn block_rows(channels: usize) -> usize {
    ((1 << 14) / channels.max(1)).clamp(16, 1024)
}

/// Values of workspace for `sums` sums over `rows` rows of `channels`.
pub(crate) fn sum_workspace(rows: usize, channels: usize, sums: usize) -> usize {
    rows.div_ceil(block_rows(channels)) * sums * channels
}

struct SumBlock<T, const N: usize> {
    terms: T,
    rows: Range<usize>,
    channels: usize,
    sums: Region<f32>,
}

/// Adds terms of a block's rows to sums `[N][channels]`, four rows at a time.
impl<const N: usize, T: Terms<N>> Kernel for SumBlock<T, N> {
    const BF16: bool = T::BF16;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let channels = self.channels;
        // SAFETY: the sums are this task's; terms are read as the caller promised.
        unsafe {
            std::ptr::write_bytes(self.sums.at(0, N * channels), 0, N * channels);
            let mut row = self.rows.start;
            while row < self.rows.end {
                let four = row + 4 <= self.rows.end;
                let mut channel = 0;
                while channel + S::LANES <= channels {
                    if four {
                        // Four rows are adjacent in memory.
                        self.terms.prefetch(row * channels + 4 * channel, 4 * S::LANES);
                    }
                    self.add::<S>(row, four, channel);
                    channel += S::LANES;
                }
                while channel < channels {
                    self.add::<Scalar>(row, four, channel);
                    channel += 1;
                }
                row += if four { 4 } else { 1 };
            }
        }
    }
}

impl<const N: usize, T: Terms<N>> SumBlock<T, N> {
    #[inline(always)]
    unsafe fn add<S: Simd>(&self, row: usize, four: bool, channel: usize) {
        let index = row * self.channels + channel;
        // SAFETY: as in `run`.
        unsafe {
            let terms = if four {
                let rows = four!(I => index + I * self.channels);
                let [first, second, third, fourth] = self.terms.at_four::<S>(rows, channel);
                let mut sums = first;
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = S::add(S::add(first[i], second[i]), S::add(third[i], fourth[i]));
                }
                sums
            } else {
                self.terms.at::<S>(index, channel)
            };
            for (i, term) in terms.into_iter().enumerate() {
                let sum = self.sums.at(i * self.channels + channel, S::LANES);
                S::store(sum, S::add(S::load(sum), term));
            }
        }
    }
}

/// Sums terms over the rows of one block into `sums` (`[N][channels]`).
///
/// # Safety
/// As for [`Terms::at`]; `sums` is valid, and only the caller uses it.
pub(crate) unsafe fn sum_block<const N: usize, T: Terms<N>>(
    isa: Isa,
    rows: Range<usize>,
    channels: usize,
    terms: &T,
    sums: Region<f32>,
) {
    // SAFETY: the caller's promise.
    unsafe { dispatch(isa, SumBlock { terms: *terms, rows, channels, sums }) }
}

/// Adds terms of rows to the sums of some channels, four rows at a time.
struct AddRows<'a, T, const N: usize> {
    terms: &'a T,
    rows: &'a [usize],
    channels: Range<usize>,
    sums: Region<f32>,
}

impl<const N: usize, T: Terms<N>> Kernel for AddRows<'_, T, N> {
    const BF16: bool = T::BF16;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for rows in self.rows.chunks(4) {
            // SAFETY: the caller's promise.
            unsafe { each_vector!(S, channel in self.channels.clone() => self, add(rows, channel)) }
        }
    }
}

impl<const N: usize, T: Terms<N>> AddRows<'_, T, N> {
    inlined! {
        unsafe fn add<S: Simd>(&self, rows: &[usize], channel: usize) {
            let mut terms = self.terms.at::<S>(rows[0] + channel, channel);
            if let &[_, second, third, fourth] = rows {
                let second = self.terms.at::<S>(second + channel, channel);
                let third = self.terms.at::<S>(third + channel, channel);
                let fourth = self.terms.at::<S>(fourth + channel, channel);
                for (i, term) in terms.iter_mut().enumerate() {
                    *term = S::add(S::add(*term, second[i]), S::add(third[i], fourth[i]));
                }
            } else {
                for &row in &rows[1..] {
                    let other = self.terms.at::<S>(row + channel, channel);
                    for (term, other) in terms.iter_mut().zip(other) {
                        *term = S::add(*term, other);
                    }
                }
            }
            for (i, term) in terms.into_iter().enumerate() {
                let sum = self.sums.at(i * self.sums.len() / N + channel, S::LANES);
                S::store(sum, S::add(S::load(sum), term));
            }
        }
    }
}

/// Adds the terms of rows, which are given by the indices of their first elements, to the sums (`[N][channels of a row]`) of some channels.
///
/// # Safety
/// As for [`Terms::at`]; the sums of these channels are valid, and only the caller uses them. The level is available.
pub(crate) unsafe fn add_rows<const N: usize, T: Terms<N>>(
    isa: Isa,
    rows: &[usize],
    channels: Range<usize>,
    terms: &T,
    sums: Region<f32>,
) {
    // SAFETY: the caller's promise.
    unsafe { dispatch(isa, AddRows { terms, rows, channels, sums }) }
}

/// Sums terms over `rows` rows of `channels`, and calls `finish` with each channel and its sums.
///
/// # Safety
/// As for [`Terms::at`]; the context's shared workspace holds [`sum_workspace`] values.
pub(crate) unsafe fn sum<const N: usize, T: Terms<N>>(
    context: &mut Context,
    rows: usize,
    channels: usize,
    terms: &T,
    finish: impl Fn(usize, [f64; N]) + Sync,
) {
    let isa = context.isa;
    let partial = context.shared;
    let step = block_rows(channels);
    let blocks = rows.div_ceil(step);
    context.pool.run(blocks, |block, _| {
        let first = block * step;
        let sums = partial.part(block * N * channels, N * channels);
        // SAFETY: the caller's promise; blocks have disjoint sums.
        unsafe { sum_block(isa, first..(first + step).min(rows), channels, terms, sums) }
    });
    finish_blocks(&mut context.pool, channels, |range| {
        let mut totals = [[0.0f64; FINISH_CHANNELS]; N];
        for block in 0..blocks {
            for (i, totals) in totals.iter_mut().enumerate() {
                // SAFETY: the blocks' sums are complete, and only read here.
                let sums = unsafe { partial.slice((block * N + i) * channels + range.start, range.len()) };
                totals.iter_mut().zip(sums).for_each(|(total, &sum)| *total += f64::from(sum));
            }
        }
        for (at, channel) in range.enumerate() {
            finish(channel, std::array::from_fn(|i| totals[i][at]));
        }
    });
}

/// Runs `job` for ranges of at most 64 channels.
pub(crate) fn finish_blocks(pool: &mut Pool, channels: usize, job: impl Fn(Range<usize>) + Sync) {
    pool.run(channels.div_ceil(FINISH_CHANNELS), |task, _| {
        let first = task * FINISH_CHANNELS;
        job(first..(first + FINISH_CHANNELS).min(channels));
    });
}
