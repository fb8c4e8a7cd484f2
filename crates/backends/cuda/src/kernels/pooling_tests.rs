//! Pooling against the reference, over odd sizes and windows.

use enmasse_reference::ops::{adaptive_avg_pool, avg_pool, max_pool};
use enmasse_tensor::{Bf16, F16};

use super::*;
use crate::test_support::{Bench, Element, assert_rounded, noise, wide};

/// Channels that divide into packets of both types, of f32 alone, and of neither.
const CHANNELS: [usize; 6] = [1, 3, 8, 12, 40, 521];

/// Samples, height and width of an input, with a window: plain, of networks, not square, dilated, and wider than its step.
const WINDOWS: [([usize; 3], Window); 11] = [
    ([2, 4, 6], window([2, 2], [2, 2], [[0; 2]; 2], [1, 1])),
    ([3, 9, 7], window([3, 3], [2, 2], [[1; 2]; 2], [1, 1])),
    ([1, 13, 10], window([7, 7], [3, 3], [[3; 2]; 2], [1, 1])),
    ([2, 5, 11], window([3, 2], [1, 3], [[1; 2], [0; 2]], [1, 1])),
    ([2, 11, 9], window([3, 2], [2, 1], [[1; 2]; 2], [2, 3])),
    ([1, 8, 5], window([1, 1], [2, 3], [[0; 2]; 2], [1, 1])),
    ([1, 3, 17], window([3, 15], [1, 1], [[1; 2], [7; 2]], [1, 1])),
    // Padding of one side, and of both unequally.
    ([2, 8, 6], window([3, 3], [2, 2], [[0, 1], [0, 1]], [1, 1])),
    ([2, 5, 7], window([4, 3], [1, 2], [[2, 0], [1, 0]], [1, 1])),
    ([1, 6, 9], window([5, 5], [2, 3], [[1, 2], [2, 1]], [1, 1])),
    // The only window has no tap on the input.
    ([1, 2, 2], window([2, 2], [1, 1], [[1; 2]; 2], [3, 3])),
];

const fn window(kernel: [usize; 2], stride: [usize; 2], padding: [[usize; 2]; 2], dilation: [usize; 2]) -> Window {
    Window { kernel, stride, padding, dilation }
}

/// Shapes of input and output.
fn shapes([samples, height, width]: [usize; 3], channels: usize, window: &Window) -> [[usize; 4]; 2] {
    let output = |axis, size| window.output(axis, size).expect("a window that fits");
    [[samples, height, width, channels], [samples, output(0, height), output(1, width), channels]]
}

fn elements(shape: [usize; 4]) -> usize {
    shape.iter().product()
}

fn check_max<E: Element>(shapes: [[usize; 4]; 2], window: &Window, x: &[E]) {
    let Some(mut bench) = Bench::new() else { return };
    let [input, output] = shapes;
    let what = format!("{} {input:?} {window}", E::DTYPE);
    let dy = noise::<E>(2, elements(output), 1.0);
    let x_at = bench.put(x);
    let dy_at = bench.put(&dy);
    let y = bench.room::<E>(elements(output));
    let position = bench.room::<u8>(elements(output));
    bench.run(&max(E::DTYPE, shapes, window, x_at, y, position));
    let expected = max_pool::max(&wide(x), input, output, window);
    assert_rounded(&what, &bench.get::<E>(y), &expected.0, 0.0);
    let found: Vec<f64> = bench.get::<u8>(position).into_iter().map(f64::from).collect();
    assert_eq!(found, expected.1, "{what}");
    let dx = bench.room::<E>(elements(input));
    bench.run(&max_backward(E::DTYPE, shapes, window, dy_at, position, dx));
    let expected = max_pool::max_backward(&wide(&dy), &expected.1, input, output, window);
    assert_rounded(&what, &bench.get::<E>(dx), &expected, 1e-6);
}

fn check_average<E: Element>(shapes: [[usize; 4]; 2], window: &Window) {
    let Some(mut bench) = Bench::new() else { return };
    let [input, output] = shapes;
    let what = format!("{} {input:?} {window}", E::DTYPE);
    let x = noise::<E>(1, elements(input), 1.0);
    let dy = noise::<E>(2, elements(output), 1.0);
    let (x_at, dy_at) = (bench.put(&x), bench.put(&dy));
    let y = bench.room::<E>(elements(output));
    let dx = bench.room::<E>(elements(input));
    bench.run(&average(E::DTYPE, shapes, window, x_at, y));
    assert_rounded(&what, &bench.get::<E>(y), &avg_pool::average(&wide(&x), input, output, window), 1e-6);
    bench.run(&average_backward(E::DTYPE, shapes, window, dy_at, dx));
    assert_rounded(&what, &bench.get::<E>(dx), &avg_pool::average_backward(&wide(&dy), input, output, window), 1e-6);
}

#[test]
fn windows() {
    fn check<E: Element>(shapes: [[usize; 4]; 2], window: &Window) {
        check_max(shapes, window, &noise::<E>(1, elements(shapes[0]), 1.0));
        check_average::<E>(shapes, window);
    }
    for (size, window) in &WINDOWS {
        for channels in CHANNELS {
            check::<f32>(shapes(*size, channels, window), window);
            check::<Bf16>(shapes(*size, channels, window), window);
            check::<F16>(shapes(*size, channels, window), window);
        }
    }
    // More pixels than a grid has threads.
    let size = [2, 371, 373];
    let window = &WINDOWS[1].1;
    check::<f32>(shapes(size, 8, window), window);
}

#[test]
fn the_first_of_equals_wins_and_the_last_nan() {
    fn check<E: Element>(shapes: [[usize; 4]; 2], window: &Window) {
        // Few values, so that most windows have equal ones.
        let values = [-1.0, 0.0, f64::NEG_INFINITY, 1.0, f64::NAN, f64::INFINITY];
        let chances = noise::<f32>(3, elements(shapes[0]), 1.0);
        for count in 1..=values.len() {
            let pick = |chance: &f32| E::of(values[(chance.abs() * count as f32) as usize % count]);
            check_max(shapes, window, &chances.iter().map(pick).collect::<Vec<E>>());
        }
        check_max(shapes, window, &vec![E::of(f64::NEG_INFINITY); elements(shapes[0])]);
        check_max(shapes, window, &vec![E::of(f64::NAN); elements(shapes[0])]);
    }
    for (size, window) in &WINDOWS {
        for channels in [3, 8] {
            check::<f32>(shapes(*size, channels, window), window);
            check::<Bf16>(shapes(*size, channels, window), window);
            check::<F16>(shapes(*size, channels, window), window);
        }
    }
}

fn check_adaptive<E: Element>([samples, height, width]: [usize; 3], output: [usize; 2], channels: usize) {
    let Some(mut bench) = Bench::new() else { return };
    let input = [samples, height, width, channels];
    let output = [samples, output[0], output[1], channels];
    let what = format!("{} {input:?} {output:?}", E::DTYPE);
    let x = noise::<E>(1, elements(input), 1.0);
    let dy = noise::<E>(2, elements(output), 1.0);
    let (x_at, dy_at) = (bench.put(&x), bench.put(&dy));
    let y = bench.room::<E>(elements(output));
    let dx = bench.room::<E>(elements(input));
    bench.run(&adaptive_average(E::DTYPE, [input, output], x_at, y));
    assert_rounded(&what, &bench.get::<E>(y), &adaptive_avg_pool::adaptive_average(&wide(&x), input, output), 2e-6);
    bench.run(&adaptive_average_backward(E::DTYPE, [input, output], dy_at, dx));
    assert_rounded(
        &what,
        &bench.get::<E>(dx),
        &adaptive_avg_pool::adaptive_average_backward(&wide(&dy), input, output),
        1e-6,
    );
}

#[test]
fn regions() {
    let check = |size, output, channels| {
        check_adaptive::<f32>(size, output, channels);
        check_adaptive::<Bf16>(size, output, channels);
        check_adaptive::<F16>(size, output, channels);
    };
    for channels in CHANNELS {
        // Global, overlapping, equal, and more outputs than inputs.
        check([3, 7, 7], [1, 1], channels);
        check([2, 31, 5], [1, 1], channels);
        check([2, 10, 13], [7, 3], channels);
        check([1, 6, 5], [6, 5], channels);
        check([2, 3, 2], [7, 7], channels);
        check([1, 5, 60], [3, 1], channels);
    }
    check([2, 7, 7], [1, 1], 2048);
    for channels in [3, 16] {
        check([1, 224, 224], [1, 1], channels);
    }
    // More results than a grid has threads, whose lanes take turns.
    check([1100, 1, 16], [1, 1], 260);
    check([9, 80, 80], [80, 80], 40);
}

#[test]
fn lanes_have_work_and_fill_a_gpu() {
    let check = |results, width, expected| assert_eq!(lanes(results, width), expected, "{results} of {width}");
    check(1, 1, 1);
    check(1, 7, 1);
    check(1, 49, 8);
    check(1, 224 * 224, 256);
    check(256 * 256, 49, 2);
    check(1 << 30, 224 * 224, 1);
}
