//! Layer norm against its definition, over odd sizes.

use enmasse_reference::ops::layer_norm as reference;
use enmasse_tensor::{Bf16, F16};

use super::*;
use crate::test_support::{Bench, Element, ROWS, assert_rounded, noise, wide};

const EPSILON: f32 = 1e-3;

fn check<E: Element>(rows: usize, channels: usize) {
    let Some(mut bench) = Bench::new() else { return };
    let bench = &mut bench;
    let size = Rows { rows, channels, dtype: E::DTYPE };
    let what = format!("{} {rows}x{channels}", E::DTYPE);
    let [x, dy] = [1, 2].map(|key| noise::<E>(key, rows * channels, 1.0));
    let [weight, bias] = [3, 4].map(|key| noise::<f32>(key, channels, 1.0));
    let [y, mean, inverse_std] = reference::forward(&wide(&x), &wide(&weight), &wide(&bias), EPSILON);
    let operands = Forward {
        x: bench.put(&x),
        weight: bench.put(&weight),
        bias: bench.put(&bias),
        y: bench.room::<E>(rows * channels),
        mean: bench.room::<f32>(rows),
        inverse_std: bench.room::<f32>(rows),
        epsilon: EPSILON,
    };
    bench.run(&forward(size, &operands));
    assert_rounded(&what, &bench.get::<E>(operands.y), &y, 1e-5);
    assert_rounded(&what, &bench.get::<f32>(operands.mean), &mean, 1e-5);
    assert_rounded(&what, &bench.get::<f32>(operands.inverse_std), &inverse_std, 1e-5);

    let gradient =
        Gradient { dy: bench.put(&dy), x: operands.x, mean: operands.mean, inverse_std: operands.inverse_std };
    let dx = bench.room::<E>(rows * channels);
    bench.run(&backward(size, &gradient, operands.weight, dx));
    let expected = reference::backward(&wide(&dy), &wide(&x), &mean, &inverse_std, &wide(&weight));
    // Where a row's values are nearly equal, the rounding of their mean counts.
    assert_rounded(&what, &bench.get::<E>(dx), &expected, 1e-4);
    let [dbias, dweight] = [(); 2].map(|()| bench.room::<f32>(channels));
    bench.run_all(&[reduce(size, &gradient, dbias, dweight)]);
    let [expected_bias, expected_weight] = reference::reduce(&wide(&dy), &wide(&x), &mean, &inverse_std);
    let tolerance = 1e-5 * (rows as f64).sqrt();
    assert_rounded(&what, &bench.get::<f32>(dbias), &expected_bias, tolerance);
    assert_rounded(&what, &bench.get::<f32>(dweight), &expected_weight, tolerance);
}

#[test]
fn rows_of_any_size() {
    for (rows, channels) in ROWS {
        check::<f32>(rows, channels);
        check::<Bf16>(rows, channels);
        check::<F16>(rows, channels);
    }
}
