//! Loss scaling against the reference's.

use enmasse_graph::Arena;
use enmasse_reference::ops::loss_scale as reference;

use super::*;
use crate::test_support::{Bench, noise, wide};
use crate::work::Memory;

#[test]
fn every_element_is_scaled() {
    for n in [1, 3, 4, 1000, 50_001] {
        let Some(mut bench) = Bench::new() else { return };
        let x = noise::<f32>(1, n, 1.0);
        let from = bench.put(&x);
        let factor = bench.put(&[1024f32]);
        let to = bench.room::<f32>(n);
        let expected = reference::scale(&wide(&x), 1024.0);
        for to in [to, from] {
            bench.run(&scale(from, factor, to));
            assert_eq!(wide(&bench.get::<f32>(to)), expected);
        }
    }
}

#[test]
fn one_element_that_is_not_finite_is_found() {
    // The last has more elements than the threads of all blocks take at once.
    for n in [1, 3, 16, 257, 16_385, 1_100_003] {
        let Some(mut bench) = Bench::new() else { return };
        let x = noise::<f32>(7, n, 1e30);
        let values = bench.put_in(Memory::Arena(Arena::Gradients), &x);
        let factor = bench.put_in(Memory::Arena(Arena::LossScale), &[8f32]);
        let result = bench.put_in(Memory::Arena(Arena::Activations), &[f32::NAN; 2]);
        let kernels = unscale(values, factor, result);
        let check = |bench: &mut Bench, expected: &[f64]| {
            bench.run_all(&kernels);
            assert_eq!(wide(&bench.get::<f32>(result)), expected, "{n}");
        };
        check(&mut bench, &reference::unscale(&wide(&x), 8.0));
        for (at, bad) in [(0, f32::NAN), (n / 2, f32::INFINITY), (n - 1, f32::NEG_INFINITY)] {
            let mut x = x.clone();
            x[at] = bad;
            bench.set(values, &x);
            check(&mut bench, &reference::unscale(&wide(&x), 8.0));
        }
        bench.set(values, &x);
        for bad in [0.0, 1e-40f32] {
            bench.set(factor, &[bad]);
            check(&mut bench, &[0.0, bad.into()]);
        }
    }
}

#[test]
fn the_scale_of_each_step_is_that_of_the_reference() {
    let Some(mut bench) = Bench::new() else { return };
    let factor = bench.put_in(Memory::Arena(Arena::Activations), &[0f32; 2]);
    let mut expected = [65536.0, 0.0, 0.0];
    let state = expected.map(|value| bench.put_in(Memory::Arena(Arena::LossScale), &[value as f32]));
    let kernel = update_scale(&UpdateScale { growth: 2.0, backoff: 0.5, interval: 3 }, factor, state);
    let run = |bench: &mut Bench, is_good: bool| {
        bench.set(factor, &[if is_good { 0.25f32 } else { 0.0 }, 4.0]);
        bench.run(&kernel);
        state.map(|span| f64::from(bench.get::<f32>(span)[0]))
    };
    for number in 0..40 {
        let is_good = number % 9 != 4 && number % 7 != 6;
        expected = reference::update_scale(if is_good { 0.25 } else { 0.0 }, expected, [2.0, 0.5], 3);
        assert_eq!(run(&mut bench, is_good), expected, "step {number}");
    }
    bench.fail();
    assert_eq!(run(&mut bench, false), expected);
    bench.set(FAILURE, &[0u32; 2]);
    // It does not grow to infinity.
    for (span, value) in state.into_iter().zip([2f32.powi(127), 2.0, 5.0]) {
        bench.set(span, &[value]);
    }
    assert_eq!(run(&mut bench, true), [2f64.powi(127), 0.0, 5.0]);
}
