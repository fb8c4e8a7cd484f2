//! Dropout against the reference.

use enmasse_reference::ops::dropout as reference;
use enmasse_tensor::{Bf16, F16};

use super::*;
use crate::test_support::{Bench, Element, assert_rounded, noise, wide};

fn check_dropout<E: Element>() {
    let (seed, probability, epoch) = (9, 0.3, 5);
    let samples = [4i64, 7_000_000_000, 1];
    let wide_samples = samples.map(|sample| sample as f64);
    let cases = [(1, false), (6, false), (7, false), (1024, false), (1, true), (7, true), (1024, true)];
    for (elements, per_sample) in cases {
        let Some(mut bench) = Bench::new() else { return };
        bench.epoch(epoch);
        let x = noise::<E>(1, 3 * elements, 1.0);
        let from = bench.put(&x);
        let indices = bench.put(&samples);
        let to = bench.room::<E>(x.len());
        let compute = if per_sample { reference::drop_path } else { reference::dropout };
        let expected = compute(&wide(&x), &wide_samples, probability, seed, "fc.1", epoch);
        let layer = Dropout { probability, seed, layer: "fc.1".into(), per_sample, cut_channels: None };
        for to in [to, from] {
            bench.run(&dropout(E::DTYPE, key(seed, "dropout fc.1"), &layer, from, indices, to));
            assert_rounded(&format!("{elements} elements"), &bench.get::<E>(to), &expected, 1e-7);
        }
    }
}

#[test]
fn dropout_reads_the_samples_stream() {
    check_dropout::<f32>();
    check_dropout::<Bf16>();
    check_dropout::<F16>();
}
