//! Images against the reference, in colour and in grey, with and without channels of zeros.

use enmasse_reference::ops::normalize as reference;
use enmasse_tensor::{Bf16, F16};

use super::*;
use crate::test_support::{Bench, Element, assert_rounded};

fn check_normalize<E: Element>(pixels: usize) {
    let (mean, std) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
    let images: Vec<u8> = (0..3 * pixels).map(|i| (i * 31 % 256) as u8).collect();
    let wide: Vec<f64> = images.iter().map(|&byte| byte.into()).collect();
    for colours in [1, 3] {
        for channels in [colours, IMAGE_CHANNELS] {
            if channels == IMAGE_CHANNELS && E::DTYPE == DType::F32 {
                continue;
            }
            let Some(mut bench) = Bench::new() else { return };
            let from = bench.put(&images);
            let to = bench.room::<E>(pixels * channels);
            let (mean, std) = (&mean[..colours], &std[..colours]);
            bench.run(&normalize(E::DTYPE, from, to, channels, mean, std));
            let expected = reference::normalize(&wide, mean, std, channels);
            assert_rounded(&format!("{pixels} pixels to {channels}"), &bench.get::<E>(to), &expected, 3e-7);
        }
    }
}

#[test]
fn images() {
    for pixels in [1, 7, 1024, 30_001] {
        check_normalize::<f32>(pixels);
        check_normalize::<Bf16>(pixels);
        check_normalize::<F16>(pixels);
    }
}
