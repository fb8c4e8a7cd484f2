//! Weights of images with channels of zeros, and their gradients, against plain loops. Values move unchanged, or are rounded once.

use enmasse_tensor::{Bf16, F16};

use super::*;
use crate::kernels::BLOCKS;
use crate::test_support::{Bench, Element, assert_rounded, noise, wide};

fn check<E: Element, F: Element>(rows: usize, channels: [usize; 2]) {
    let Some(mut bench) = Bench::new() else { return };
    let [before, after] = channels;
    let weights = noise::<E>(1, rows * before, 4.0);
    let from = bench.put(&weights);
    let to = bench.room::<F>(rows * after);
    bench.run(&columns([E::DTYPE, F::DTYPE], channels, from, to));
    let padded = wide(&weights);
    let padded = padded.chunks(before).flat_map(|row| row.iter().copied().chain([0.0; 8]).take(after));
    let what = format!("{rows} rows of {channels:?}, {} to {}", E::DTYPE, F::DTYPE);
    assert_rounded(&what, &bench.get::<F>(to), &padded.collect::<Vec<_>>(), 0.0);
}

#[test]
fn weights_get_channels_and_gradients_lose_them() {
    // The last has more elements than a grid has threads.
    for rows in [1, 7, 25 * 6, 49 * 64, BLOCKS * 100] {
        for own in [1, 3] {
            check::<f32, Bf16>(rows, [own, 8]);
            check::<f32, F16>(rows, [own, 8]);
            check::<Bf16, f32>(rows, [8, own]);
            check::<F16, f32>(rows, [8, own]);
            check::<f32, f32>(rows, [8, own]);
        }
    }
}
