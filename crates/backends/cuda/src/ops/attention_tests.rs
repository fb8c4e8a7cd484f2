//! Attention against its definition, over odd sizes.

use enmasse_reference::ops::attention as reference;
use enmasse_tensor::{Bf16, F16};

use super::*;
use crate::test_support::{Bench, Element, assert_rounded, noise, wide};

fn check<E: Element>([batch, tokens, heads, head]: [usize; 4]) {
    let Some(mut bench) = Bench::new() else { return };
    let bench = &mut bench;
    let size = Size { batch, tokens, heads, head };
    let of_reference = reference::Size { batch, tokens, heads, head };
    let what = format!("{} {size:?}", E::DTYPE);
    let rows = batch * tokens * heads * head;
    let qkv = noise::<E>(1, 3 * rows, 3.0);
    let dy = noise::<E>(2, rows, 1.0);
    let on_gpu = bench.put(&qkv);
    let y = bench.room::<E>(rows);
    let log_sum_exp = bench.room::<f32>(batch * heads * tokens);
    bench.run(&forward(size, E::DTYPE, on_gpu, y, log_sum_exp));
    let [expected, sums] = reference::forward(&wide(&qkv), of_reference);
    assert_rounded(&what, &bench.get::<E>(y), &expected, 1e-5);
    assert_rounded(&what, &bench.get::<f32>(log_sum_exp), &sums, 1e-5);

    let rounded = bench.get::<E>(y);
    let gradient = Gradient { dy: bench.put(&dy), qkv: on_gpu, y, log_sum_exp };
    let dqkv = bench.room::<E>(3 * rows);
    bench.run_all(&backward(size, E::DTYPE, &gradient, dqkv));
    let expected = reference::backward(&wide(&dy), &wide(&qkv), &wide(&rounded), &sums, of_reference);
    assert_rounded(&what, &bench.get::<E>(dqkv), &expected, 1e-4);
}

#[test]
fn heads_of_any_size() {
    for size in [[1, 1, 1, 16], [2, 17, 3, 24], [1, 50, 2, 64], [2, 16, 1, 80], [1, 33, 1, 5], [1, 20, 1, 128]] {
        check::<f32>(size);
        check::<Bf16>(size);
        check::<F16>(size);
    }
}
