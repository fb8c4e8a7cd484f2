//! Changes of order against the reference. Values move unchanged, or are rounded once.

use enmasse_reference::ops::flatten as reference;
use enmasse_tensor::{Bf16, F16};

use super::*;
use crate::test_support::{Bench, Element, assert_rounded, noise, wide};

/// Activations whose pixels and channels fill tiles, fall short of them and go beyond, with one pixel, and with one channel.
const SHAPES: [[usize; 4]; 10] = [
    [1, 1, 1, 1],
    [5, 1, 1, 521],
    [3, 9, 11, 1],
    [2, 7, 7, 3],
    [3, 6, 6, 40],
    [2, 4, 8, 32],
    [1, 5, 13, 64],
    [2, 1, 33, 31],
    [1, 3, 2, 521],
    // More tiles than a grid has blocks.
    [1100, 2, 3, 33],
];

/// Of maps of one type and features of another, or of the same.
fn check<E: Element, F: Element>(shape: [usize; 4]) {
    let Some(mut bench) = Bench::new() else { return };
    let elements = shape.iter().product();
    let what = format!("{} {} {shape:?}", E::DTYPE, F::DTYPE);
    let (x, dy) = (noise::<E>(1, elements, 4.0), noise::<F>(2, elements, 4.0));
    let (x_at, dy_at) = (bench.put(&x), bench.put(&dy));
    let (y, dx) = (bench.room::<F>(elements), bench.room::<E>(elements));
    let (there, back) = ([E::DTYPE, F::DTYPE], [F::DTYPE, E::DTYPE]);
    match (flatten(there, shape, x_at, y), flatten_backward(back, shape, dy_at, dx)) {
        (Call::Kernel(there), Call::Kernel(back)) => {
            bench.run(&there);
            assert_rounded(&what, &bench.get::<F>(y), &reference::flatten(&wide(&x), shape), 0.0);
            bench.run(&back);
            assert_rounded(&what, &bench.get::<E>(dx), &reference::flatten_backward(&wide(&dy), shape), 0.0);
        }
        copies => {
            assert_eq!(copies, (Call::Copy { from: x_at, to: y }, Call::Copy { from: dy_at, to: dx }), "{what}");
            assert!(E::DTYPE == F::DTYPE && (shape[1] * shape[2] == 1 || shape[3] == 1), "{what}");
        }
    }
}

#[test]
fn flattened_maps_and_their_gradients() {
    for shape in SHAPES {
        check::<f32, f32>(shape);
        check::<Bf16, f32>(shape);
        check::<F16, f32>(shape);
        check::<Bf16, Bf16>(shape);
        check::<F16, F16>(shape);
    }
}
