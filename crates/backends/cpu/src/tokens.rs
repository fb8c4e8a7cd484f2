//! Tokens that all samples share, and some of the tokens of each sample. Regions have equal pieces for each of `batch` samples.

use crate::element::{Element, copy};
use crate::inlined::inlined;
use crate::isa::{Isa, Kernel, Simd, dispatch};
use crate::region::Region;
use crate::sweep::{self, Pass};
use crate::workspace::Context;

struct Add<E> {
    x: Region<E>,
    tokens: Region<f32>,
    y: Region<E>,
}

impl<E: Element> Pass for Add<E> {
    const BF16: bool = E::BF16;

    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, channel: usize) {
            let x = E::load::<S>(self.x.at(index, S::LANES));
            E::store::<S>(self.y.at(index, S::LANES), S::add(x, S::load(self.tokens.at(channel, S::LANES))))
        }
    }
}

/// `x` plus the same tokens for each sample.
///
/// # Safety
/// Regions are valid, `x` and `y` as long as all samples' tokens; `y` is written, and may coincide with `x`.
pub(crate) unsafe fn add<E: Element>(
    context: &mut Context,
    batch: usize,
    x: Region<E>,
    tokens: Region<f32>,
    y: Region<E>,
) {
    // SAFETY: the caller's promise.
    unsafe { sweep::by_channel(context, batch, tokens.len(), &Add { x, tokens, y }) }
}

struct Copy<X, Y> {
    from: Region<X>,
    to: Region<Y>,
}

impl<X: Element, Y: Element> Kernel for Copy<X, Y> {
    const BF16: bool = X::BF16 || Y::BF16;

    inlined! {
        unsafe fn run<S: Simd>(self) {
            copy::<S, X, Y>(self.from.at(0, self.to.len()), self.to.at(0, self.to.len()), self.to.len())
        }
    }
}

/// # Safety
/// Regions are valid and equally long, and do not overlap; `isa` runs here.
unsafe fn copied<X: Element, Y: Element>(isa: Isa, from: Region<X>, to: Region<Y>) {
    // SAFETY: the caller's promise.
    unsafe { dispatch(isa, Copy { from, to }) }
}

/// The piece of a sample.
fn piece<E>(of: Region<E>, batch: usize, sample: usize) -> Region<E> {
    let each = of.len() / batch;
    of.part(sample * each, each)
}

/// The same tokens before those of each sample.
///
/// # Safety
/// Regions are valid, `y` as long as `x` and the tokens of all samples; `y` is written.
pub(crate) unsafe fn prepend<E: Element>(
    context: &mut Context,
    batch: usize,
    x: Region<E>,
    tokens: Region<f32>,
    y: Region<E>,
) {
    let isa = context.isa;
    context.pool.run(batch, |sample, _| {
        let (x, y) = (piece(x, batch, sample), piece(y, batch, sample));
        // SAFETY: the caller's promise; each task has its own sample.
        unsafe {
            copied(isa, tokens, y.part(0, tokens.len()));
            copied(isa, x, y.part(tokens.len(), x.len()));
        }
    });
}

struct Sum<E> {
    dy: Region<E>,
    batch: usize,
    sums: Region<f32>,
}

impl<E: Element> Pass for Sum<E> {
    const BF16: bool = E::BF16;

    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, _channel: usize) {
            let mut sum = S::splat(0.0);
            let each = self.dy.len() / self.batch;
            for sample in 0..self.batch {
                sum = S::add(sum, E::load::<S>(self.dy.at(sample * each + index, S::LANES)));
            }
            S::store(self.sums.at(index, S::LANES), sum)
        }
    }
}

/// The sum over samples of the first values of each.
///
/// # Safety
/// Regions are valid; `sums` is written, and no longer than a sample.
pub(crate) unsafe fn sum<E: Element>(context: &mut Context, batch: usize, dy: Region<E>, sums: Region<f32>) {
    // SAFETY: the caller's promise.
    unsafe { sweep::flat(context, sums.len(), &Sum { dy, batch, sums }) }
}

/// Some values of each sample, from the one at index `first`.
///
/// # Safety
/// Regions are valid, and each sample of `x` has the values; `y` is written.
pub(crate) unsafe fn select<E: Element>(context: &mut Context, batch: usize, first: usize, x: Region<E>, y: Region<E>) {
    let isa = context.isa;
    context.pool.run(batch, |sample, _| {
        let (x, y) = (piece(x, batch, sample), piece(y, batch, sample));
        // SAFETY: the caller's promise; each task has its own sample.
        unsafe { copied(isa, x.part(first, y.len()), y) }
    });
}

/// The gradient of [`select`]: 0 for all other values.
///
/// # Safety
/// Regions are valid, and each sample of `dx` has the values; `dx` is written.
pub(crate) unsafe fn select_backward<E: Element>(
    context: &mut Context,
    batch: usize,
    first: usize,
    dy: Region<E>,
    dx: Region<E>,
) {
    let isa = context.isa;
    context.pool.run(batch, |sample, _| {
        let (dy, dx) = (piece(dy, batch, sample), piece(dx, batch, sample));
        // SAFETY: the caller's promise; each task has its own sample, whose bytes are all 0 before the values are copied.
        unsafe {
            std::ptr::write_bytes(dx.at(0, dx.len()), 0, dx.len());
            copied(isa, dy, dx.part(first, dy.len()));
        }
    });
}

#[cfg(test)]
mod tests {
    use enmasse_reference::ops::tokens as reference;
    use enmasse_tensor::Bf16;

    use super::*;
    use crate::guard::{Edge, Guarded};
    use crate::test_support::{available, noise};
    use crate::workspace::Workspace;

    fn wide<E: Element>(values: &[E]) -> Vec<f64> {
        values.iter().map(|value| value.get().into()).collect()
    }

    /// The values of the reference, rounded.
    fn rounded<E: Element>(values: &[f64]) -> Vec<f64> {
        values.iter().map(|&value| E::of(value as f32).get().into()).collect()
    }

    /// Samples of `tokens` values, of which `count` from `first` on are selected, and before which `count` are put.
    fn check<E: Element>(isa: Isa, edge: Edge, [batch, tokens, first, count]: [usize; 4]) {
        let context = &mut Context::new(2, isa, Workspace::default()).unwrap();
        let values = |key, n| -> Vec<E> { noise(key, n).iter().map(|&value| E::of(value)).collect() };
        let x = Guarded::new(edge, &values(1, batch * tokens));
        let [all, some] = [tokens, count].map(|n| Guarded::new(edge, &noise(2, n)));
        let room = |n| Guarded::filled(edge, E::of(f32::NAN), n);
        let mut added = room(batch * tokens);
        let mut longer = room(batch * (count + tokens));
        let (mut selected, mut dx) = (room(batch * count), room(batch * tokens));
        let mut sums = Guarded::filled(edge, f32::NAN, count);
        // SAFETY: live buffers of the right sizes.
        unsafe {
            add(context, batch, Region::of(&x), Region::of(&all), Region::of_mut(&mut added));
            prepend(context, batch, Region::of(&x), Region::of(&some), Region::of_mut(&mut longer));
            sum(context, batch, Region::of(&x), Region::of_mut(&mut sums));
            let selected = Region::of_mut(&mut selected);
            select(context, batch, first, Region::of(&x), selected);
            select_backward(context, batch, first, selected, Region::of_mut(&mut dx));
        }
        let (x, all, some) = (wide(&x), wide(&all), wide(&some));
        assert_eq!(wide(&added), rounded::<E>(&reference::add(&x, &all)), "{isa}");
        assert_eq!(wide(&longer), rounded::<E>(&reference::prepend(&x, &some, batch)), "{isa}");
        for (found, expected) in sums.iter().zip(reference::sum(&x, batch, count)) {
            assert!((f64::from(*found) - expected).abs() < 1e-5, "{isa}: {found} {expected}");
        }
        let expected = reference::select(&x, batch, first..first + count);
        assert_eq!(wide(&selected), expected, "{isa}");
        assert_eq!(wide(&dx), reference::select_backward(&expected, batch, first, batch * tokens), "{isa}");
    }

    #[test]
    fn samples_of_any_size_equal_the_reference() {
        for isa in available() {
            for sizes in [[1, 1, 0, 1], [3, 35, 7, 5], [2, 100, 0, 33], [17, 64, 32, 32], [5, 40_000, 39_983, 17]] {
                for edge in Edge::BOTH {
                    check::<f32>(isa, edge, sizes);
                    check::<Bf16>(isa, edge, sizes);
                }
            }
        }
    }
}
