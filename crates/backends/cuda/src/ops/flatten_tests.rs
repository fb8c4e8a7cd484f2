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

fn check<E: Element>(shape: [usize; 4]) {
    let Some(mut bench) = Bench::new() else { return };
    let elements = shape.iter().product();
    let what = format!("{} {shape:?}", E::DTYPE);
    let (x, dy) = (noise::<E>(1, elements, 4.0), noise::<f32>(2, elements, 4.0));
    let (x_at, dy_at) = (bench.put(&x), bench.put(&dy));
    let (y, dx) = (bench.room::<f32>(elements), bench.room::<E>(elements));
    bench.run(&flatten(E::DTYPE, shape, x_at, y));
    assert_eq!(wide(&bench.get::<f32>(y)), reference::flatten(&wide(&x), shape), "{what}");
    bench.run(&flatten_backward(E::DTYPE, shape, dy_at, dx));
    assert_rounded(&what, &bench.get::<E>(dx), &reference::flatten_backward(&wide(&dy), shape), 0.0);
}

#[test]
fn flattened_maps_and_their_gradients() {
    for shape in SHAPES {
        check::<f32>(shape);
        check::<Bf16>(shape);
        check::<F16>(shape);
    }
}
