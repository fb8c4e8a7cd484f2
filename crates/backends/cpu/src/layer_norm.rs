//! Layer norm and its gradients. Each row is a task's own, so bits do not depend on the number of threads.

use std::ops::Range;

use crate::element::Element;
use crate::inlined::{each_vector, inlined};
use crate::isa::{Kernel, Simd, dispatch, values_ahead};
use crate::region::Region;
use crate::sweep::{self, Rows, Sum, TASK_VALUES, Terms, row_sums};
use crate::workspace::Context;

/// The operands and results of a layer norm.
#[derive(Clone, Copy)]
pub(crate) struct Forward<E> {
    pub size: Rows,
    pub x: Region<E>,
    pub weight: Region<f32>,
    pub bias: Region<f32>,
    pub y: Region<E>,
    pub mean: Region<f32>,
    pub inverse_std: Region<f32>,
    pub epsilon: f32,
}

/// The operands of a layer norm's gradients.
#[derive(Clone, Copy)]
pub(crate) struct Gradient<E> {
    pub size: Rows,
    pub dy: Region<E>,
    pub x: Region<E>,
    pub mean: Region<f32>,
    pub inverse_std: Region<f32>,
}

/// Rows that are processed together. What a row needs follows from sums over it, each from the one before, so a processor has too little to
/// do with one.
const TOGETHER: usize = 4;

/// What is done with rows, at most [`TOGETHER`]. `#[inline(always)]`.
trait Row: Copy + Sync {
    /// # Safety
    /// The memory of the rows is valid, and only this call writes to it.
    unsafe fn rows<S: Simd>(&self, rows: Range<usize>, channels: usize);
}

struct Block<R> {
    rows: Range<usize>,
    channels: usize,
    each: R,
}

impl<R: Row> Kernel for Block<R> {
    const BF16: bool = true;

    inlined! {
        unsafe fn run<S: Simd>(self) {
            for first in self.rows.clone().step_by(TOGETHER) {
                self.each.rows::<S>(first..(first + TOGETHER).min(self.rows.end), self.channels);
            }
        }
    }
}

/// # Safety
/// As for [`Row::rows`], for every row.
unsafe fn each_row(context: &mut Context, size: Rows, each: impl Row) {
    let Rows { rows, channels } = size;
    let isa = context.isa;
    let step = (TASK_VALUES / channels.max(1)).max(1);
    context.pool.run(rows.div_ceil(step), |task, _| {
        let rows = task * step..((task + 1) * step).min(rows);
        // SAFETY: the caller's promise; tasks have disjoint rows.
        unsafe { dispatch(isa, Block { rows, channels, each }) }
    });
}

/// Squared deviations from the mean of a row.
#[derive(Clone, Copy)]
struct Squares<E> {
    x: Region<E>,
    mean: f32,
}

impl<E: Element> Terms<1> for Squares<E> {
    const BF16: bool = E::BF16;

    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, _channel: usize) -> [S::V; 1] {
            let deviation = S::sub(E::load::<S>(self.x.at(index, S::LANES)), S::splat(self.mean));
            [S::mul(deviation, deviation)]
        }
    }

    fn prefetch(&self, _index: usize, _count: usize) {}
}

/// One row of the result.
struct Normalized<'a, E> {
    forward: &'a Forward<E>,
    mean: f32,
    inverse_std: f32,
}

impl<E: Element> Normalized<'_, E> {
    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, channel: usize) {
            let Forward { x, weight, bias, y, .. } = self.forward;
            let x = E::load::<S>(x.at(index, S::LANES));
            let z = S::mul(S::sub(x, S::splat(self.mean)), S::splat(self.inverse_std));
            let weight = S::load(weight.at(channel, S::LANES));
            let bias = S::load(bias.at(channel, S::LANES));
            E::store::<S>(y.at(index, S::LANES), S::mul_add(z, weight, bias))
        }
    }
}

impl<E: Element> Row for Forward<E> {
    inlined! {
        unsafe fn rows<S: Simd>(&self, rows: Range<usize>, channels: usize) {
            let (mut means, mut inverse_stds) = ([0.0; TOGETHER], [0.0; TOGETHER]);
            for (i, row) in rows.clone().enumerate() {
                let [sum] = row_sums::<1, S, _>(&Sum { x: self.x }, row, channels);
                means[i] = sum / channels as f32;
            }
            for (i, row) in rows.clone().enumerate() {
                let [squares] = row_sums::<1, S, _>(&Squares { x: self.x, mean: means[i] }, row, channels);
                let variance = f64::from(squares) / channels as f64;
                inverse_stds[i] = (variance + f64::from(self.epsilon)).sqrt().recip() as f32;
            }
            for (i, row) in rows.enumerate() {
                let (mean, inverse_std) = (means[i], inverse_stds[i]);
                *self.mean.at(row, 1) = mean;
                *self.inverse_std.at(row, 1) = inverse_std;
                let normalized = Normalized { forward: self, mean, inverse_std };
                each_vector!(S, channel in 0..channels => normalized, at(row * channels + channel, channel))
            }
        }
    }
}

/// Normalises every row.
///
/// # Safety
/// Regions are valid, of `size`; `y`, `mean` and `inverse_std` are written.
pub(crate) unsafe fn forward<E: Element>(context: &mut Context, forward: &Forward<E>) {
    // SAFETY: the caller's promise.
    unsafe { each_row(context, forward.size, *forward) }
}

/// `g = dy * weight`, and `g * z` with the normalised x of a row.
#[derive(Clone, Copy)]
struct Weighted<E> {
    gradient: Gradient<E>,
    weight: Region<f32>,
    mean: f32,
    inverse_std: f32,
}

impl<E: Element> Weighted<E> {
    inlined! {
        unsafe fn normalized<S: Simd>(&self, index: usize) -> S::V {
            let x = E::load::<S>(self.gradient.x.at(index, S::LANES));
            S::mul(S::sub(x, S::splat(self.mean)), S::splat(self.inverse_std))
        }
        unsafe fn weighted<S: Simd>(&self, index: usize, channel: usize) -> S::V {
            let dy = E::load::<S>(self.gradient.dy.at(index, S::LANES));
            S::mul(dy, S::load(self.weight.at(channel, S::LANES)))
        }
    }
}

impl<E: Element> Terms<2> for Weighted<E> {
    const BF16: bool = E::BF16;

    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, channel: usize) -> [S::V; 2] {
            let weighted = self.weighted::<S>(index, channel);
            [weighted, S::mul(weighted, self.normalized::<S>(index))]
        }
    }

    fn prefetch(&self, _index: usize, _count: usize) {}
}

/// One row of the input's gradient.
struct InputGradient<E> {
    terms: Weighted<E>,
    /// The means of both terms.
    means: [f32; 2],
    dx: Region<E>,
}

impl<E: Element> InputGradient<E> {
    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, channel: usize) {
            let InputGradient { terms, means: [mean, product], dx } = self;
            let centred = S::sub(terms.weighted::<S>(index, channel), S::splat(*mean));
            let along = S::mul(terms.normalized::<S>(index), S::splat(*product));
            E::store::<S>(dx.at(index, S::LANES), S::mul(S::sub(centred, along), S::splat(terms.inverse_std)))
        }
    }
}

#[derive(Clone, Copy)]
struct Backward<E> {
    gradient: Gradient<E>,
    weight: Region<f32>,
    dx: Region<E>,
}

impl<E: Element> Backward<E> {
    inlined! {
        unsafe fn terms(&self, row: usize) -> Weighted<E> {
            let Backward { gradient, weight, .. } = *self;
            Weighted { gradient, weight, mean: *gradient.mean.at(row, 1), inverse_std: *gradient.inverse_std.at(row, 1) }
        }
    }
}

impl<E: Element> Row for Backward<E> {
    inlined! {
        unsafe fn rows<S: Simd>(&self, rows: Range<usize>, channels: usize) {
            let mut means = [[0.0; 2]; TOGETHER];
            for (i, row) in rows.clone().enumerate() {
                means[i] = row_sums::<2, S, _>(&self.terms(row), row, channels).map(|sum| sum / channels as f32);
            }
            for (i, row) in rows.enumerate() {
                let gradient = InputGradient { terms: self.terms(row), means: means[i], dx: self.dx };
                each_vector!(S, channel in 0..channels => gradient, at(row * channels + channel, channel))
            }
        }
    }
}

/// The gradient of the input.
///
/// # Safety
/// Regions are valid, of the gradient's size; `dx` is written.
pub(crate) unsafe fn backward<E: Element>(
    context: &mut Context,
    gradient: &Gradient<E>,
    weight: Region<f32>,
    dx: Region<E>,
) {
    // SAFETY: the caller's promise.
    unsafe { each_row(context, gradient.size, Backward { gradient: *gradient, weight, dx }) }
}

/// `dy`, and `dy` times the normalised x.
impl<E: Element> Terms<2> for Gradient<E> {
    const BF16: bool = E::BF16;

    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, _channel: usize) -> [S::V; 2] {
            let row = index / self.size.channels;
            let (mean, inverse_std) = (*self.mean.at(row, 1), *self.inverse_std.at(row, 1));
            let dy = E::load::<S>(self.dy.at(index, S::LANES));
            let deviation = S::sub(E::load::<S>(self.x.at(index, S::LANES)), S::splat(mean));
            [dy, S::mul(dy, S::mul(deviation, S::splat(inverse_std)))]
        }
    }

    #[inline(always)]
    fn prefetch(&self, index: usize, count: usize) {
        self.dy.prefetch(index, values_ahead::<E>(), count);
        self.x.prefetch(index, values_ahead::<E>(), count);
    }
}

/// The gradients of bias and weight.
///
/// # Safety
/// Regions are valid, of the gradient's size; `dbias` and `dweight` are written. The context's shared workspace holds
/// [`sweep::sum_workspace`] values of two sums.
pub(crate) unsafe fn reduce<E: Element>(
    context: &mut Context,
    gradient: &Gradient<E>,
    dbias: Region<f32>,
    dweight: Region<f32>,
) {
    let Rows { rows, channels } = gradient.size;
    // SAFETY: the caller's promise; each channel is written once.
    unsafe {
        sweep::sum(context, rows, channels, gradient, |channel, [sum, product]| {
            *dbias.at(channel, 1) = sum as f32;
            *dweight.at(channel, 1) = product as f32;
        });
    }
}

#[cfg(test)]
mod tests {
    use enmasse_reference::ops::layer_norm as reference;

    use super::*;
    use crate::guard::{Edge, Guarded, GuardedContext};
    use crate::isa::Isa;
    use crate::test_support::{assert_near, available, noise};

    const EPSILON: f32 = 1e-3;

    fn wide(values: &[f32]) -> Vec<f64> {
        values.iter().map(|&value| value.into()).collect()
    }

    /// The results and gradients of `rows` rows of `channels`, and what the reference gives from the same f32 values.
    fn check(rows: usize, channels: usize, isa: Isa, threads: usize) -> Vec<f32> {
        let size = Rows { rows, channels };
        let edge = Edge::BOTH[threads % 2];
        let context = &mut GuardedContext::new(edge, threads, isa, size.workspace());
        let values = |key: u64, n: usize| Guarded::new(edge, &noise(key, n));
        let [x, dy] = [1, 2].map(|key| values(key, rows * channels));
        let [weight, bias] = [3, 4].map(|key| values(key, channels));
        let [mut y, mut dx] = [(); 2].map(|()| Guarded::filled(edge, f32::NAN, rows * channels));
        let [mut mean, mut inverse_std] = [(); 2].map(|()| Guarded::filled(edge, f32::NAN, rows));
        let [mut dbias, mut dweight] = [(); 2].map(|()| Guarded::filled(edge, f32::NAN, channels));
        // SAFETY: every region is a live buffer of the right size.
        unsafe {
            let mean = Region::of_mut(&mut mean);
            let inverse_std = Region::of_mut(&mut inverse_std);
            let (x, weight) = (Region::of(&x), Region::of(&weight));
            let bias = Region::of(&bias);
            let y = Region::of_mut(&mut y);
            forward(context, &Forward { size, x, weight, bias, y, mean, inverse_std, epsilon: EPSILON });
            let gradient = Gradient { size, dy: Region::of(&dy), x, mean, inverse_std };
            backward(context, &gradient, weight, Region::of_mut(&mut dx));
            reduce(context, &gradient, Region::of_mut(&mut dbias), Region::of_mut(&mut dweight));
        }
        let expected = reference::forward(&wide(&x), &wide(&weight), &wide(&bias), EPSILON);
        for (what, found, expected) in [("y", &y, &expected[0]), ("mean", &mean, &expected[1])] {
            assert_near(&format!("{what} {isa} {rows}x{channels}"), found, expected, 1e-5);
        }
        let [_, mean64, inverse64] = &expected;
        assert_near("inverse_std", &inverse_std, inverse64, 1e-5);
        let expected = reference::backward(&wide(&dy), &wide(&x), mean64, inverse64, &wide(&weight));
        assert_near(&format!("dx {isa} {rows}x{channels}"), &dx, &expected, 1e-4);
        let [bias64, weight64] = reference::reduce(&wide(&dy), &wide(&x), mean64, inverse64);
        assert_near("dbias", &dbias, &bias64, 1e-4);
        assert_near("dweight", &dweight, &weight64, 1e-4);
        [&y, &dx, &dbias, &dweight].iter().flat_map(|values| values.iter().copied()).collect()
    }

    #[test]
    fn rows_of_any_size_equal_the_reference_with_any_number_of_threads() {
        for isa in available() {
            for (rows, channels) in [(1, 1), (3, 2), (5, 17), (70, 33), (197, 192), (2, 1000), (40_000, 3)] {
                let single = check(rows, channels, isa, 1);
                assert_eq!(check(rows, channels, isa, 3), single, "{isa} {rows}x{channels}");
            }
        }
    }
}
