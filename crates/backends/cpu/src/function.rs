//! Functions of one number, element by element, and their gradients.

use enmasse_graph::ops::Function;

use crate::curve::{Curve, with_curve};
use crate::element::{Element, load_four, store_four};
use crate::inlined::inlined;
use crate::isa::{Four, Simd};
use crate::region::Region;
use crate::sweep::{self, Pass};
use crate::workspace::Context;

struct Map<E, C> {
    x: Region<E>,
    y: Region<E>,
    curve: C,
}

impl<E: Element, C: Curve> Pass for Map<E, C> {
    const BF16: bool = E::BF16;
    const FOUR: bool = true;

    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, _channel: usize) {
            let x = E::load::<S>(self.x.at(index, S::LANES));
            E::store::<S>(self.y.at(index, S::LANES), self.curve.value::<S>(x))
        }
        unsafe fn at_four<S: Simd>(&self, index: usize, _channel: usize) {
            let x = load_four::<E, S>(self.x, index);
            store_four::<E, S>(self.y, index, self.curve.value::<Four<S>>(x))
        }
    }
}

/// Applies the function to every element.
///
/// # Safety
/// Regions are valid and equally long; `y` is written, and may coincide with `x`.
pub(crate) unsafe fn map<E: Element>(context: &mut Context, function: Function, x: Region<E>, y: Region<E>) {
    // SAFETY: the caller's promise.
    unsafe { with_curve!(function, curve => sweep::flat(context, y.len(), &Map { x, y, curve })) }
}

struct MapBackward<E, C> {
    dy: Region<E>,
    x: Region<E>,
    dx: Region<E>,
    curve: C,
}

impl<E: Element, C: Curve> Pass for MapBackward<E, C> {
    const BF16: bool = E::BF16;
    const FOUR: bool = true;

    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, _channel: usize) {
            let dy = E::load::<S>(self.dy.at(index, S::LANES));
            let x = E::load::<S>(self.x.at(index, S::LANES));
            E::store::<S>(self.dx.at(index, S::LANES), self.curve.gradient::<S>(dy, x))
        }
        unsafe fn at_four<S: Simd>(&self, index: usize, _channel: usize) {
            let (dy, x) = (load_four::<E, S>(self.dy, index), load_four::<E, S>(self.x, index));
            store_four::<E, S>(self.dx, index, self.curve.gradient::<Four<S>>(dy, x))
        }
    }
}

/// `dy` times the function's derivative at every element of `x`.
///
/// # Safety
/// Regions are valid and equally long; `dx` is written, and may coincide with `dy`.
pub(crate) unsafe fn map_backward<E: Element>(
    context: &mut Context,
    function: Function,
    dy: Region<E>,
    x: Region<E>,
    dx: Region<E>,
) {
    // SAFETY: the caller's promise.
    unsafe { with_curve!(function, curve => sweep::flat(context, dx.len(), &MapBackward { dy, x, dx, curve })) }
}

#[cfg(test)]
mod tests {
    use enmasse_graph::ops::Operation;
    use enmasse_reference::ops::function as reference;

    use super::*;
    use crate::guard::{Edge, Guarded};
    use crate::isa::Isa;
    use crate::test_support::{available, noise};
    use crate::workspace::Workspace;

    /// In f64, rounded once.
    const EXACT: [Function; 7] = [
        Function::Affine { scale: -2.0, shift: 0.25 },
        Function::Exp,
        Function::Log,
        Function::Power(2.0),
        Function::Power(-0.5),
        Function::Power(0.0),
        Function::ClampMin(0.75),
    ];
    const SMOOTH: [Function; 2] = [Function::Sigmoid, Function::Gelu];

    fn wide(values: &[f32]) -> Vec<f64> {
        values.iter().map(|&value| value.into()).collect()
    }

    /// Whether a result is within `ulp` units in the last place of what is expected, or within `absolute` of it.
    fn is_near(found: f32, expected: f64, ulp: f64, absolute: f64) -> bool {
        let found = f64::from(found);
        let limit = ulp * expected.abs() * f64::from(f32::EPSILON);
        found == expected || (found - expected).abs() <= limit.max(absolute) || found.is_nan() && expected.is_nan()
    }

    /// Runs a function and its gradient in place, on a level, and checks every element.
    fn check(function: Function, isa: Isa, edge: Edge, x: &[f32], ulp: f64, absolute: f64) {
        let context = &mut Context::new(3, isa, Workspace::default()).unwrap();
        let (x, dy) = (Guarded::new(edge, x), Guarded::new(edge, &noise(2, x.len())));
        let (mut y, mut dx) = (Guarded::new(edge, &x), Guarded::new(edge, &dy));
        let (over_x, over_dy) = (Region::of_mut(&mut y), Region::of_mut(&mut dx));
        // SAFETY: live buffers of equal length.
        unsafe {
            map(context, function, over_x, over_x);
            map_backward(context, function, over_dy, Region::of(&x), over_dy);
        }
        let values = reference::map(&wide(&x), function);
        let gradients = reference::map_backward(&wide(&dy), &wide(&x), function);
        for (i, (&y, &dx)) in y.iter().zip(dx.iter()).enumerate() {
            let name = function.name();
            assert!(is_near(y, values[i], ulp, absolute), "{name} {isa}: {} gives {y}, not {}", x[i], values[i]);
            assert!(
                is_near(dx, gradients[i], ulp, absolute),
                "{name} {isa}: at {} dx {dx}, not {}",
                x[i],
                gradients[i]
            );
        }
    }

    #[test]
    fn functions_in_place_equal_the_reference() {
        for (edge, n) in Edge::BOTH.into_iter().flat_map(|edge| [1, 17, 10_001].map(|n| (edge, n))) {
            for isa in available() {
                // Logarithms and roots need numbers above 0.
                let positive: Vec<f32> = noise(1, n).iter().map(|x| x.abs() + 0.01).collect();
                EXACT.into_iter().for_each(|function| check(function, isa, edge, &positive, 1.0, 1e-30));
                let both: Vec<f32> = noise(1, n).iter().map(|x| 6.0 * x).collect();
                SMOOTH.into_iter().for_each(|function| check(function, isa, edge, &both, 4.0, 2e-7));
            }
        }
    }

    #[test]
    fn nan_and_edge_values_equal_the_reference() {
        let large = [-f32::MAX, -100.0, -90.0, -20.0, -3.0, -0.0, 0.0, 0.75, 3.0, 20.0, 90.0, 100.0];
        for isa in available() {
            for function in EXACT {
                check(function, isa, Edge::BOTH[0], &[f32::NAN, 0.0, 0.75, f32::INFINITY], 1.0, 1e-30);
            }
            SMOOTH.into_iter().for_each(|function| check(function, isa, Edge::BOTH[0], &large, 4.0, 2e-7));
            let context = &mut Context::new(1, isa, Workspace::default()).unwrap();
            for function in SMOOTH {
                let mut y = [f32::NAN; 17];
                let over = Region::of_mut(&mut y);
                // SAFETY: a live buffer.
                unsafe { map(context, function, over, over) };
                assert!(y.iter().all(|y| y.is_nan()), "{} {isa}: {y:?}", function.name());
            }
        }
    }
}
