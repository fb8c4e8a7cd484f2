//! Shared and selected tokens against their definitions.

use enmasse_reference::ops::tokens as reference;
use enmasse_tensor::{Bf16, F16};

use super::*;
use crate::test_support::{Bench, Element, assert_rounded, noise, wide};

/// Samples of `piece` values, of which `count` from `first` on are selected, and before which `count` are put.
fn check<E: Element>([batch, piece, first, count]: [usize; 4]) {
    let Some(mut bench) = Bench::new() else { return };
    let bench = &mut bench;
    let samples = Samples { batch, dtype: E::DTYPE };
    let what = format!("{} {batch}x{piece}", E::DTYPE);
    let x = noise::<E>(1, batch * piece, 1.0);
    let [all, some] = [piece, count].map(|n| noise::<f32>(2, n, 1.0));
    let on_gpu = bench.put(&x);
    let all_on_gpu = bench.put(&all);
    let some_on_gpu = bench.put(&some);

    let y = bench.room::<E>(batch * piece);
    bench.run(&samples.add(on_gpu, all_on_gpu, y));
    assert_rounded(&what, &bench.get::<E>(y), &reference::add(&wide(&x), &wide(&all)), 1e-6);
    let y = bench.room::<E>(batch * (piece + count));
    bench.run(&samples.prepend(on_gpu, some_on_gpu, y));
    assert_rounded(&what, &bench.get::<E>(y), &reference::prepend(&wide(&x), &wide(&some), batch), 0.0);
    let sums = bench.room::<f32>(count);
    bench.run(&samples.sum(on_gpu, sums));
    assert_rounded(&what, &bench.get::<f32>(sums), &reference::sum(&wide(&x), batch, count), 1e-5);

    let y = bench.room::<E>(batch * count);
    bench.run(&samples.select(first, on_gpu, y));
    let expected = reference::select(&wide(&x), batch, first..first + count);
    assert_rounded(&what, &bench.get::<E>(y), &expected, 0.0);
    let dx = bench.room::<E>(batch * piece);
    bench.run(&samples.select_backward(first, y, dx));
    let expected = reference::select_backward(&expected, batch, first, batch * piece);
    assert_rounded(&what, &bench.get::<E>(dx), &expected, 0.0);
}

#[test]
fn samples_of_any_size() {
    for sizes in [[1, 1, 0, 1], [3, 35, 7, 5], [2, 600, 0, 300], [5, 64, 32, 32]] {
        check::<f32>(sizes);
        check::<Bf16>(sizes);
        check::<F16>(sizes);
    }
}
