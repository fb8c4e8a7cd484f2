//! Passes over single elements: images to f32, activations, add, dropout, and the order of a flattened feature map.

use std::marker::PhantomData;

use enmasse_graph::Activation;
use enmasse_tensor::random::{philox, unit_f32};

use crate::activation::{ActivationFunction, with_activation};
use crate::element::{Element, load_four, store_four};
use crate::inlined::inlined;
use crate::isa::{Four, Simd};
use crate::region::Region;
use crate::sweep::{self, Pass, Piece};
use crate::workspace::Context;

/// Values per task of the passes that use no vectors.
const TASK_VALUES: usize = 1 << 14;

/// `(x / 255 - mean) / std` for every byte value and channel. There are at most three channels.
#[derive(Clone, Debug)]
pub(crate) struct NormalizeTable<E> {
    values: Box<[[E; 3]; 256]>,
    channels: usize,
}

impl<E: Element> NormalizeTable<E> {
    /// The table of [`normalize`]; `None` unless the numbers of means and stds are equal, and one or three.
    pub(crate) fn new(mean: &[f32], std: &[f32]) -> Option<Self> {
        let channels = mean.len();
        if std.len() != channels || ![1, 3].contains(&channels) {
            return None;
        }
        // With one channel, the entries of the other two are never read.
        let value = |byte: usize, c: usize| (byte as f32 / 255.0 - mean[c % channels]) / std[c % channels];
        let values = Box::new(std::array::from_fn(|byte| std::array::from_fn(|c| E::of(value(byte, c)))));
        Some(NormalizeTable { values, channels })
    }
}

/// Images `[..., 3]` of bytes to f32, or to their first channel.
///
/// # Safety
/// Regions are valid, with equally many pixels; `y` has the table's channels and is written.
pub(crate) unsafe fn normalize<E: Element>(
    context: &mut Context,
    table: &NormalizeTable<E>,
    x: Region<u8>,
    y: Region<E>,
) {
    let NormalizeTable { values, channels } = table;
    let pixels = x.len() / 3;
    let step = TASK_VALUES / 3;
    context.pool.run(pixels.div_ceil(step), |task, _| {
        let first = task * step;
        let count = step.min(pixels - first);
        // SAFETY: the caller's promise; tasks write disjoint pixels.
        let (from, to) = unsafe { (x.slice(3 * first, 3 * count), y.slice_mut(channels * first, channels * count)) };
        let from = from.as_chunks::<3>().0.iter();
        if *channels == 1 {
            from.zip(to).for_each(|(from, to)| *to = values[usize::from(from[0])][0]);
            return;
        }
        for (from, to) in from.zip(to.as_chunks_mut::<3>().0) {
            *to = std::array::from_fn(|c| values[usize::from(from[c])][c]);
        }
    });
}

struct Apply<E, R> {
    x: Region<E>,
    y: Region<E>,
    activation: PhantomData<R>,
}

impl<E: Element, R: ActivationFunction> Pass for Apply<E, R> {
    const BF16: bool = E::BF16;
    const FOUR: bool = R::CHAINS;

    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, _: usize) {
            E::store::<S>(self.y.at(index, S::LANES), R::apply::<S>(E::load::<S>(self.x.at(index, S::LANES))))
        }
        unsafe fn at_four<S: Simd>(&self, index: usize, _: usize) {
            store_four::<E, S>(self.y, index, R::apply::<Four<S>>(load_four::<E, S>(self.x, index)))
        }
    }
}

/// The activation of every element; NaN stays.
///
/// # Safety
/// Regions are valid and equally long; `y` is written, and may coincide with `x`.
pub(crate) unsafe fn activate<E: Element>(context: &mut Context, activation: Activation, x: Region<E>, y: Region<E>) {
    // SAFETY: the caller's promise.
    unsafe {
        with_activation!(Some(activation), R => {
            sweep::flat(context, y.len(), &Apply { x, y, activation: PhantomData::<R> });
        });
    }
}

struct Gate<E, R> {
    dy: Region<E>,
    known: Region<E>,
    dx: Region<E>,
    activation: PhantomData<R>,
}

impl<E: Element, R: ActivationFunction> Pass for Gate<E, R> {
    const BF16: bool = E::BF16;
    const FOUR: bool = R::CHAINS;

    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, _: usize) {
            let n = S::LANES;
            let dx = R::gradient::<S, E>(E::load::<S>(self.dy.at(index, n)), E::load::<S>(self.known.at(index, n)));
            E::store::<S>(self.dx.at(index, n), dx);
        }
        unsafe fn at_four<S: Simd>(&self, index: usize, _: usize) {
            let (dy, known) = (load_four::<E, S>(self.dy, index), load_four::<E, S>(self.known, index));
            store_four::<E, S>(self.dx, index, R::gradient::<Four<S>, E>(dy, known))
        }
    }
}

/// dy times the activation's derivative, by a ReLU's result, or by another activation's operand.
///
/// # Safety
/// Regions are valid and equally long; `dx` is written, and may coincide with `dy`.
pub(crate) unsafe fn activate_backward<E: Element>(
    context: &mut Context,
    activation: Activation,
    dy: Region<E>,
    known: Region<E>,
    dx: Region<E>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        with_activation!(Some(activation), R => {
            sweep::flat(context, dx.len(), &Gate { dy, known, dx, activation: PhantomData::<R> });
        });
    }
}

/// The sum of two operands, or their product.
struct Combine<E, const PRODUCT: bool> {
    a: Region<E>,
    b: Region<E>,
    c: Region<E>,
}

impl<E: Element, const PRODUCT: bool> Pass for Combine<E, PRODUCT> {
    const BF16: bool = E::BF16;

    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, _: usize) {
            let n = S::LANES;
            let a = E::load::<S>(self.a.at(index, n));
            let b = E::load::<S>(self.b.at(index, n));
            E::store::<S>(self.c.at(index, n), if PRODUCT { S::mul(a, b) } else { S::add(a, b) });
        }
    }
}

/// `c = a + b`.
///
/// # Safety
/// Regions are valid and equally long; `c` is written, and may coincide with either operand.
pub(crate) unsafe fn add<E: Element>(context: &mut Context, a: Region<E>, b: Region<E>, c: Region<E>) {
    // SAFETY: the caller's promise.
    unsafe { sweep::flat(context, c.len(), &Combine::<E, false> { a, b, c }) }
}

/// `c = a * b`.
///
/// # Safety
/// As for [`add`].
pub(crate) unsafe fn multiply<E: Element>(context: &mut Context, a: Region<E>, b: Region<E>, c: Region<E>) {
    // SAFETY: the caller's promise.
    unsafe { sweep::flat(context, c.len(), &Combine::<E, true> { a, b, c }) }
}

/// The inputs of a dropout layer's mask, apart from the sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dropout {
    pub key: [u32; 2],
    pub probability: f32,
}

impl Dropout {
    /// Four random words of a sample.
    fn words(&self, epoch: u64, sample: i64, block: u32) -> [u32; 4] {
        let sample = sample as u64;
        philox(self.key, [block, epoch as u32, sample as u32, (sample >> 32) as u32])
    }

    /// Whether the element stays whose random word this is.
    fn keeps(&self, word: u32) -> bool {
        unit_f32(word) >= self.probability
    }

    /// The factor of what stays.
    fn factor(&self) -> f32 {
        1.0 / (1.0 - self.probability)
    }
}

/// Drops elements by the random words of their sample. The gradient is the same operation.
///
/// # Safety
/// Regions are valid. `x` and `y` are equally long, and their length is a multiple of the number of samples. `y` is
/// written, and may coincide with `x`.
pub(crate) unsafe fn dropout<E: Element>(
    context: &mut Context,
    dropout: Dropout,
    epoch: u64,
    samples: Region<i64>,
    x: Region<E>,
    y: Region<E>,
) {
    let elements = x.len() / samples.len().max(1);
    let whole = RowPart { first: 0, count: elements, whole: elements };
    // SAFETY: the caller's promise.
    unsafe { dropout_part(context, dropout, epoch, samples, whole, x, y) }
}

/// The elements of each row of a sample that a rank has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowPart {
    /// The first one.
    pub first: usize,
    /// How many.
    pub count: usize,
    /// How many all ranks have together.
    pub whole: usize,
}

/// As [`dropout`], of a part of each row: its elements have the random words that they have in the whole.
///
/// # Safety
/// As for [`dropout`]. Samples are rows of this part.
pub(crate) unsafe fn dropout_part<E: Element>(
    context: &mut Context,
    dropout: Dropout,
    epoch: u64,
    samples: Region<i64>,
    part: RowPart,
    x: Region<E>,
    y: Region<E>,
) {
    let elements = x.len() / samples.len().max(1);
    let factor = dropout.factor();
    context.pool.run(samples.len(), |sample, _| {
        // SAFETY: the caller's promise; each task has its own sample.
        let index = unsafe { *samples.at(sample, 1) };
        for row in 0..elements / part.count.max(1) {
            let start = row * part.whole + part.first;
            let own = start..start + part.count;
            for block in own.start / 4..own.end.div_ceil(4) {
                let words = dropout.words(epoch, index, block as u32);
                for (element, word) in (4 * block..own.end).zip(words).filter(|(element, _)| own.contains(element)) {
                    let at = sample * elements + row * part.count + (element - start);
                    // SAFETY: as above; the value is read before it is written.
                    unsafe {
                        let value = (*x.at(at, 1)).get();
                        *y.at(at, 1) = if dropout.keeps(word) { E::of(value * factor) } else { E::ZERO };
                    }
                }
            }
        }
    });
}

/// Multiplies a sample that stays, and writes zeros for another.
struct KeepSample<E> {
    x: Region<E>,
    y: Region<E>,
    factor: Option<f32>,
}

impl<E: Element> Pass for KeepSample<E> {
    const BF16: bool = E::BF16;

    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, _: usize) {
            let y = match self.factor {
                Some(factor) => S::mul(E::load::<S>(self.x.at(index, S::LANES)), S::splat(factor)),
                None => S::splat(0.0),
            };
            E::store::<S>(self.y.at(index, S::LANES), y)
        }
    }
}

/// Drops whole samples by their first random word: drop path. `pieces` divide the elements of each. The gradient is the same operation.
///
/// # Safety
/// As for [`dropout`].
pub(crate) unsafe fn drop_path<E: Element>(
    context: &mut Context,
    dropout: Dropout,
    epoch: u64,
    samples: Region<i64>,
    pieces: &[Piece],
    [x, y]: [Region<E>; 2],
) {
    let pass = |piece: &Piece| {
        // SAFETY: the caller's promise.
        let [word, ..] = dropout.words(epoch, unsafe { *samples.at(piece.range, 1) }, 0);
        KeepSample { x, y, factor: dropout.keeps(word).then(|| dropout.factor()) }
    };
    // SAFETY: the caller's promise.
    unsafe { sweep::pieces(context, pieces, pass) }
}

/// `[N, pixels, C]` to `[N, C, pixels]`; with the last two sizes exchanged, the inverse.
///
/// # Safety
/// Regions are valid, of `samples * pixels * channels` values; `y` is written and overlaps no operand.
pub(crate) unsafe fn transpose<X: Element, Y: Element>(
    context: &mut Context,
    [samples, pixels, channels]: [usize; 3],
    x: Region<X>,
    y: Region<Y>,
) {
    let size = pixels * channels;
    context.pool.run(samples, |sample, _| {
        // SAFETY: the caller's promise; each task has its own sample.
        let (x, y) = unsafe { (x.slice(sample * size, size), y.slice_mut(sample * size, size)) };
        if pixels == 1 || channels == 1 {
            return y.iter_mut().zip(x).for_each(|(y, x)| *y = Y::of(x.get()));
        }
        for (channel, y) in y.chunks_exact_mut(pixels).enumerate() {
            y.iter_mut().zip(x[channel..].iter().step_by(channels)).for_each(|(y, x)| *y = Y::of(x.get()));
        }
    });
}

#[cfg(test)]
#[path = "elementwise_tests.rs"]
mod tests;
