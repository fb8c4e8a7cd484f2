//! Functions of one number, element by element. They are computed in f64 and rounded once, so the bits do not depend on
//! the level.

use enmasse_graph::ops::Function;

use crate::element::Element;
use crate::region::Region;
use crate::workspace::Context;

/// Values per task.
const TASK_VALUES: usize = 1 << 12;

fn value(function: Function, x: f64) -> f64 {
    match function {
        Function::Affine { scale, shift } => f64::from(scale) * x + f64::from(shift),
        Function::Exp => x.exp(),
        Function::Log => x.ln(),
        Function::Power(exponent) => x.powf(exponent.into()),
        // NaN stays NaN.
        Function::ClampMin(minimum) if x < minimum.into() => minimum.into(),
        Function::ClampMin(_) => x,
    }
}

fn derivative(function: Function, x: f64) -> f64 {
    match function {
        Function::Affine { scale, .. } => scale.into(),
        Function::Exp => x.exp(),
        Function::Log => x.recip(),
        // Not NaN at 0.
        Function::Power(0.0) => 0.0,
        Function::Power(exponent) => f64::from(exponent) * x.powf(f64::from(exponent) - 1.0),
        Function::ClampMin(minimum) => f64::from(u8::from(x >= minimum.into())),
    }
}

/// Calls `job` for every index below `len`, on all threads.
pub(crate) fn each(context: &mut Context, len: usize, job: impl Fn(usize) + Sync) {
    context.pool.run(len.div_ceil(TASK_VALUES), |task, _| {
        (task * TASK_VALUES..len.min((task + 1) * TASK_VALUES)).for_each(&job);
    });
}

/// Applies the function to every element.
///
/// # Safety
/// Regions are valid and equally long; `y` is written, and may coincide with `x`.
pub(crate) unsafe fn map<E: Element>(context: &mut Context, function: Function, x: Region<E>, y: Region<E>) {
    each(context, y.len(), |index| {
        // SAFETY: the caller's promise; the value is read before it is written.
        unsafe {
            let x = (*x.at(index, 1)).get();
            *y.at(index, 1) = E::of(value(function, x.into()) as f32);
        }
    });
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
    each(context, dx.len(), |index| {
        // SAFETY: the caller's promise; values are read before they are written.
        unsafe {
            let (dy, x) = ((*dy.at(index, 1)).get(), (*x.at(index, 1)).get());
            *dx.at(index, 1) = E::of((f64::from(dy) * derivative(function, x.into())) as f32);
        }
    });
}

#[cfg(test)]
mod tests {
    use enmasse_graph::ops::Operation;
    use enmasse_reference::ops::function as reference;

    use super::*;
    use crate::guard::{Edge, Guarded};
    use crate::isa::Isa;
    use crate::test_support::{assert_near, noise};
    use crate::workspace::Workspace;

    const FUNCTIONS: [Function; 7] = [
        Function::Affine { scale: -2.0, shift: 0.25 },
        Function::Exp,
        Function::Log,
        Function::Power(2.0),
        Function::Power(-0.5),
        Function::Power(0.0),
        Function::ClampMin(0.75),
    ];

    #[test]
    fn functions_in_place_equal_the_reference() {
        for (edge, n) in Edge::BOTH.into_iter().flat_map(|edge| [1, 17, 10_001].map(|n| (edge, n))) {
            let context = &mut Context::new(3, Isa::Portable, Workspace::default()).unwrap();
            // Logarithms and roots need numbers above 0.
            let x: Vec<f32> = noise(1, n).iter().map(|x| x.abs() + 0.01).collect();
            let (x, dy) = (Guarded::new(edge, &x), Guarded::new(edge, &noise(2, n)));
            let wide = |values: &[f32]| values.iter().map(|&value| value.into()).collect::<Vec<f64>>();
            for function in FUNCTIONS {
                let (mut y, mut dx) = (Guarded::new(edge, &x), Guarded::new(edge, &dy));
                let (over_x, over_dy) = (Region::of_mut(&mut y), Region::of_mut(&mut dx));
                // SAFETY: live buffers of equal length.
                unsafe {
                    map(context, function, over_x, over_x);
                    map_backward(context, function, over_dy, Region::of(&x), over_dy);
                }
                assert_near(function.name(), &y, &reference::map(&wide(&x), function), 1e-6);
                let expected = reference::map_backward(&wide(&dy), &wide(&x), function);
                assert_near(function.name(), &dx, &expected, 1e-6);
            }
        }
    }

    #[test]
    fn nan_and_edge_values_equal_the_reference() {
        for (function, x) in FUNCTIONS.into_iter().flat_map(|f| [f64::NAN, 0.0, 0.75, f64::INFINITY].map(|x| (f, x))) {
            let same = |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan());
            assert!(same(value(function, x), reference::map(&[x], function)[0]), "{function:?} {x}");
            let expected = reference::map_backward(&[1.0], &[x], function)[0];
            assert!(same(derivative(function, x), expected), "{function:?} {x}");
        }
    }
}
