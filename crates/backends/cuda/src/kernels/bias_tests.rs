//! Biases against their definition, in place and out of place.

use enmasse_reference::ops::linear;
use enmasse_tensor::{Bf16, F16};

use super::*;
use crate::test_support::{Bench, Element, ROWS, assert_rounded, noise, wide};

fn check<E: Element>(rows: usize, channels: usize) {
    let Some(mut bench) = Bench::new() else { return };
    let size = Rows { rows, channels, dtype: E::DTYPE };
    let [x, dy] = [1, 2].map(|key| noise::<E>(key, rows * channels, 1.0));
    let shift = noise::<f32>(3, channels, 1.0);
    let [x_at, dy_at] = [&x, &dy].map(|values| bench.put(values));
    let shift_at = bench.put(&shift);
    let y = bench.room::<E>(rows * channels);
    let what = format!("{} {rows}x{channels}", E::DTYPE);
    let expected: Vec<f64> = wide(&x).iter().zip(wide(&shift).iter().cycle()).map(|(x, shift)| x + shift).collect();
    bench.run(&bias(size, x_at, shift_at, y));
    assert_rounded(&what, &bench.get::<E>(y), &expected, 1e-7);
    bench.run(&bias(size, x_at, shift_at, x_at));
    assert_rounded(&what, &bench.get::<E>(x_at), &expected, 1e-7);
    let sums = bench.room::<f32>(channels);
    bench.run_all(&[bias_backward(size, dy_at, sums)]);
    let expected = linear::bias_backward(&wide(&dy), channels);
    assert_rounded(&what, &bench.get::<f32>(sums), &expected, 1e-6 * (rows as f64).sqrt());
}

#[test]
fn biases_and_gradients() {
    for (rows, channels) in ROWS {
        check::<f32>(rows, channels);
        check::<Bf16>(rows, channels);
        check::<F16>(rows, channels);
    }
}
