//! Products with one factor for each channel, of all samples or of each one.

use crate::element::Element;
use crate::inlined::inlined;
use crate::isa::{Simd, values_ahead};
use crate::region::Region;
use crate::sweep::{self, Pass, Terms};
use crate::workspace::{Context, Workspace};

/// How elements share factors: each of `samples` groups of `rows` rows has its own factor for each channel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared {
    pub samples: usize,
    pub rows: usize,
    pub channels: usize,
}

impl Shared {
    /// That of [`multiply_reduce`].
    pub(crate) fn workspace(&self) -> Workspace {
        Workspace { shared: sweep::sum_workspace(self.rows, self.channels, 1), private: 0 }
    }
}

struct Scale<E, F> {
    size: Shared,
    a: Region<E>,
    b: Region<F>,
    c: Region<E>,
}

impl<E: Element, F: Element> Pass for Scale<E, F> {
    const BF16: bool = E::BF16;

    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, channel: usize) {
            let Shared { rows, channels, .. } = self.size;
            let factor = index / (rows * channels) * channels + channel;
            let a = E::load::<S>(self.a.at(index, S::LANES));
            let b = F::load::<S>(self.b.at(factor, S::LANES));
            E::store::<S>(self.c.at(index, S::LANES), S::mul(a, b))
        }
    }
}

/// `c = a * b`.
///
/// # Safety
/// Regions are valid, of `size`; `c` is written, and may coincide with `a`.
pub(crate) unsafe fn multiply<E: Element, F: Element>(
    context: &mut Context,
    size: Shared,
    a: Region<E>,
    b: Region<F>,
    c: Region<E>,
) {
    // SAFETY: the caller's promise.
    unsafe { sweep::by_channel(context, size.samples * size.rows, size.channels, &Scale { size, a, b, c }) }
}

/// `dy * a`.
#[derive(Clone, Copy)]
pub(crate) struct Products<E> {
    pub dy: Region<E>,
    pub a: Region<E>,
}

impl<E: Element> Terms<1> for Products<E> {
    const BF16: bool = E::BF16;

    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, _channel: usize) -> [S::V; 1] {
            let dy = E::load::<S>(self.dy.at(index, S::LANES));
            let a = E::load::<S>(self.a.at(index, S::LANES));
            [S::mul(dy, a)]
        }
    }

    #[inline(always)]
    fn prefetch(&self, index: usize, count: usize) {
        self.dy.prefetch(index, values_ahead::<E>(), count);
        self.a.prefetch(index, values_ahead::<E>(), count);
    }
}

/// The gradient of the factors: sums of `dy * a`.
///
/// # Safety
/// Regions are valid, of `size`; `db` is written. The context's shared workspace holds [`Shared::workspace`].
pub(crate) unsafe fn multiply_reduce<E: Element, F: Element>(
    context: &mut Context,
    size: Shared,
    dy: Region<E>,
    a: Region<E>,
    db: Region<F>,
) {
    let Shared { samples, rows, channels } = size;
    for sample in 0..samples {
        let part = |region: Region<E>| region.part(sample * rows * channels, rows * channels);
        let terms = Products { dy: part(dy), a: part(a) };
        // SAFETY: the caller's promise; each factor is written once.
        unsafe {
            sweep::sum(context, rows, channels, &terms, |channel, [sum]| {
                *db.at(sample * channels + channel, 1) = F::of(sum as f32);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use enmasse_reference::ops::multiply as reference;
    use enmasse_tensor::Bf16;

    use super::*;
    use crate::test_support::{assert_near, available, noise};

    fn wide<E: Element>(values: &[E]) -> Vec<f64> {
        values.iter().map(|&value| value.get().into()).collect()
    }

    fn rounded<E: Element>(key: u64, n: usize) -> Vec<E> {
        noise(key, n).into_iter().map(E::of).collect()
    }

    /// Products in place and their gradient, of elements `E` and factors `F`.
    fn check<E: Element, F: Element>(size: Shared, threads: usize, tolerance: f64) {
        let Shared { samples, rows, channels } = size;
        for isa in available() {
            let context = &mut Context::new(threads, isa, size.workspace()).unwrap();
            let mut a = rounded::<E>(1, samples * rows * channels);
            let dy = rounded::<E>(2, samples * rows * channels);
            let b = rounded::<F>(3, samples * channels);
            let mut db = vec![F::ZERO; samples * channels];
            let expected = reference::multiply(&wide(&a), &wide(&b), channels);
            let sums = reference::reduce(&wide(&dy), &wide(&a), samples * channels, channels);
            // SAFETY: live buffers of the right sizes.
            unsafe {
                multiply_reduce(context, size, Region::of(&dy), Region::of(&a), Region::of_mut(&mut db));
                let over = Region::of_mut(&mut a);
                multiply(context, size, over, Region::of(&b), over);
            }
            let single = |values: &[f64]| values.iter().map(|&value| value as f32).collect::<Vec<f32>>();
            assert_near(&format!("{isa} {size:?}"), &single(&wide(&a)), &expected, tolerance);
            assert_near(&format!("sums {isa} {size:?}"), &single(&wide(&db)), &sums, tolerance);
        }
    }

    #[test]
    fn factors_of_all_samples_and_of_each_one_equal_the_reference() {
        for (samples, rows, channels) in [(1, 1, 1), (1, 4097, 3), (3, 49, 17), (2, 9, 480), (5, 1, 33)] {
            let size = Shared { samples, rows, channels };
            for threads in [1, 3] {
                check::<f32, f32>(size, threads, 1e-5);
                check::<Bf16, f32>(size, threads, 1e-2);
                check::<Bf16, Bf16>(size, threads, 1e-2);
            }
        }
    }
}
