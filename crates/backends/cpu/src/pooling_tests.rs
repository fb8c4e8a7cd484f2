//! Pooling against plain loops.

use proptest::prelude::*;

use super::*;
use crate::guard::{Edge, Guarded};
use crate::isa::Isa;
use crate::test_support::{assert_near, available, noise};
use crate::workspace::Workspace;

fn context(isa: Isa) -> Context {
    Context::new(2, isa, Workspace::default()).unwrap()
}

/// `(input pixel, position in the window)` of every element of an output's window that lies in the feature map.
fn elements(shape: &PoolShape, window: &Window, oy: usize, ox: usize) -> Vec<(usize, usize)> {
    let [h, w, _] = shape.input;
    let mut found = Vec::new();
    for ky in 0..window.kernel[0] {
        for kx in 0..window.kernel[1] {
            let y = (oy * window.stride[0] + ky * window.dilation[0]).wrapping_sub(window.padding[0][0]);
            let x = (ox * window.stride[1] + kx * window.dilation[1]).wrapping_sub(window.padding[1][0]);
            if y < h && x < w {
                found.push((y * w + x, ky * window.kernel[1] + kx));
            }
        }
    }
    found
}

fn check(batch: usize, size: [usize; 2], channels: usize, window: &Window) {
    let (Some(oh), Some(ow)) = (window.output(0, size[0]), window.output(1, size[1])) else { return };
    let shape = PoolShape { batch, input: [size[0], size[1], channels], output: [oh, ow] };
    if (0..oh * ow).any(|i| elements(&shape, window, i / ow, i % ow).is_empty()) {
        return; // a dilated window may straddle the feature map, and then has no maximum
    }
    // Few distinct values, so that there are ties.
    let mut x: Vec<f32> = noise(1, batch * size[0] * size[1] * channels).iter().map(|v| (v * 4.0).round()).collect();
    x[0] = f32::NEG_INFINITY;
    let dy = noise(2, batch * oh * ow * channels);
    let (mut max64, mut average64) = (vec![0.0; dy.len()], vec![0.0; dy.len()]);
    let (mut max_dx, mut average_dx) = (vec![0.0; x.len()], vec![0.0; x.len()]);
    let mut positions = vec![0; dy.len()];
    for (i, gradient) in dy.iter().enumerate() {
        let c = i % channels;
        let ox = i / channels % ow;
        let oy = i / channels / ow % oh;
        let n = i / channels / ow / oh;
        let at = |pixel: usize| (n * size[0] * size[1] + pixel) * channels + c;
        let elements = elements(&shape, window, oy, ox);
        let mut best = elements[0];
        for &(pixel, position) in &elements {
            if x[at(pixel)] > x[at(best.0)] {
                best = (pixel, position);
            }
            let divisor = (window.kernel[0] * window.kernel[1]) as f64;
            average64[i] += f64::from(x[at(pixel)]) / divisor;
            average_dx[at(pixel)] += f64::from(*gradient) / divisor;
        }
        (max64[i], positions[i]) = (f64::from(x[at(best.0)]), best.1 as u8);
        max_dx[at(best.0)] += f64::from(*gradient);
    }
    for (isa, edge) in available().flat_map(|isa| Edge::BOTH.map(|edge| (isa, edge))) {
        let context = &mut context(isa);
        let (mut x, dy) = (Guarded::new(edge, &x), Guarded::new(edge, &dy));
        let mut y = Guarded::filled(edge, f32::NAN, dy.len());
        let mut position = Guarded::filled(edge, 255, dy.len());
        let mut dx = Guarded::filled(edge, f32::NAN, x.len());
        let maximum = Maximum::new(shape, window);
        // SAFETY: live buffers of the shape's sizes.
        unsafe {
            let position = Region::of_mut(&mut position);
            maximum.forward(context, Region::of(&x), Region::of_mut(&mut y), position);
            maximum.backward(context, Region::of(&dy), position, Region::of_mut(&mut dx));
        }
        assert_eq!(*position, *positions, "{window}");
        assert!(y.iter().zip(&max64).all(|(a, b)| f64::from(*a) == *b), "{window}");
        assert_near("max dx", &dx, &max_dx, 1e-6);
        if window.dilation == [1; 2] {
            x[0] = 1.0;
            let corner: Vec<f64> = average64.iter().map(|v| if v.is_finite() { *v } else { f64::NAN }).collect();
            let average = Average::window(shape, window);
            // SAFETY: as above.
            unsafe {
                average.forward(context, Region::of(&x), Region::of_mut(&mut y));
                average.backward(context, Region::of(&dy), Region::of_mut(&mut dx));
            }
            for (a, b) in y.iter().zip(&corner).filter(|(_, b)| b.is_finite()) {
                assert!((f64::from(*a) - b).abs() < 1e-5, "{window}");
            }
            assert_near("average dx", &dx, &average_dx, 1e-6);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn any_window(
        batch in 1usize..3,
        size in [1usize..9, 1usize..9],
        channels in prop::sample::select(vec![1usize, 3, 16, 35, 70]),
        kernel in [1usize..4, 1usize..4],
        stride in [1usize..4, 1usize..4],
        padding in [[0usize..2, 0usize..2], [0usize..2, 0usize..2]],
        dilation in [1usize..3, 1usize..3],
    ) {
        // As in PyTorch, padding is at most half the kernel.
        let padding = [0, 1].map(|axis| padding[axis].map(|side| side.min(kernel[axis] / 2)));
        check(batch, size, channels, &Window { kernel, stride, padding, dilation });
    }
}

#[test]
fn nan_wins() {
    let window = Window { kernel: [1, 3], stride: [1, 1], padding: [[0; 2]; 2], dilation: [1, 1] };
    let check = |x: [f32; 3], expected: f32, at: u8| {
        // Whole vectors, single vectors, and single channels.
        for (isa, channels) in available().flat_map(|isa| [1, 19, 70].map(|channels| (isa, channels))) {
            let shape = PoolShape { batch: 1, input: [1, 3, channels], output: [1, 1] };
            let x: Vec<f32> = x.iter().flat_map(|&x| vec![x; channels]).collect();
            let (mut y, mut position) = (vec![0.0; channels], vec![9; channels]);
            // SAFETY: live buffers of the shape's sizes.
            unsafe {
                let (y, position) = (Region::of_mut(&mut y), Region::of_mut(&mut position));
                Maximum::new(shape, &window).forward(&mut context(isa), Region::of(&x), y, position);
            }
            assert!(y.iter().all(|y| *y == expected || (y.is_nan() && expected.is_nan())), "{isa} {y:?}");
            assert_eq!(position, vec![at; channels], "{isa}");
        }
    };
    check([1.0, f32::NAN, 5.0], f32::NAN, 1);
    check([f32::NAN, 1.0, 5.0], f32::NAN, 0);
    check([1.0, 5.0, 5.0], 5.0, 1);
    check([f32::NEG_INFINITY; 3], f32::NEG_INFINITY, 0);
}

#[test]
fn adaptive_windows_overlap_if_sizes_do_not_divide() {
    let shape = PoolShape { batch: 1, input: [1, 5, 1], output: [1, 3] };
    let average = Average::adaptive(shape);
    let x = [1.0f32, 2.0, 4.0, 8.0, 16.0];
    let dy = [2.0f32, 3.0, 4.0];
    let (mut y, mut dx) = ([0.0; 3], [0.0; 5]);
    let context = &mut context(Isa::detect());
    // SAFETY: live buffers of the shape's sizes.
    unsafe {
        average.forward(context, Region::of(&x), Region::of_mut(&mut y));
        average.backward(context, Region::of(&dy), Region::of_mut(&mut dx));
    }
    assert_near("y", &y, &[1.5, 14.0 / 3.0, 12.0], 1e-6);
    assert_near("dx", &dx, &[1.0, 2.0, 1.0, 3.0, 2.0], 1e-6);
}
