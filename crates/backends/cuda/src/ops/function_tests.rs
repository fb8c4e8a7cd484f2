//! Functions against their definitions, in place and out of place.

use enmasse_graph::ops::Operation;
use enmasse_reference::ops::function;
use enmasse_tensor::{Bf16, F16};

use super::*;
use crate::test_support::{Element, check_one, check_two, noise, wide};

fn check_functions<E: Element>() {
    let functions = [
        Function::Affine { scale: -2.5, shift: 0.25 },
        Function::Exp,
        Function::Log,
        Function::Power(2.0),
        Function::Power(0.5),
        Function::Power(0.0),
        Function::Power(-1.5),
        Function::ClampMin(0.5),
        Function::Sigmoid,
        Function::Gelu,
    ];
    for (function, n) in functions.iter().flat_map(|&function| [1, 300_001].map(|n| (function, n))) {
        // Logarithms and roots take positive numbers.
        let x: Vec<E> = noise::<E>(1, n, 3.0).iter().map(|x| E::of(x.get().abs() + 0.05)).collect();
        let dy = noise::<E>(2, n, 2.0);
        let expected = function::map(&wide(&x), function);
        check_one(function.name(), &x, &expected, 1e-6, |x, y| map(E::DTYPE, code(function), x, y));
        let expected = function::map_backward(&wide(&dy), &wide(&x), function);
        check_two(function.name(), [&dy, &x], &expected, 1e-6, |dy, x, dx| {
            map_backward(E::DTYPE, code(function), dy, x, dx)
        });
    }
}

#[test]
fn functions_and_their_derivatives() {
    check_functions::<f32>();
    check_functions::<Bf16>();
    check_functions::<F16>();
}

#[test]
fn functions_of_special_values() {
    let x = [0.0, -3.0, 0.5, f32::NAN];
    for function in [Function::ClampMin(0.5), Function::Power(2.0), Function::Power(0.0), Function::Power(1.0)] {
        let expected = function::map(&wide(&x), function);
        check_one(function.name(), &x, &expected, 1e-6, |x, y| map(DType::F32, code(function), x, y));
        let dy = [2.0; 4];
        let expected = function::map_backward(&wide(&dy), &wide(&x), function);
        check_two(function.name(), [&dy, &x], &expected, 1e-6, |dy, x, dx| {
            map_backward(DType::F32, code(function), dy, x, dx)
        });
    }
}
