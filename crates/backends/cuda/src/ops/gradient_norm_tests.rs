//! Norms against the reference's, and their special values.

use enmasse_graph::Arena;
use enmasse_reference::ops::gradient_norm as reference;

use super::*;
use crate::kernels::THREADS;
use crate::test_support::{Bench, noise, wide};
use crate::work::Memory;

/// The norm of the kernels.
fn norm(x: &[f32]) -> Option<f32> {
    let mut bench = Bench::new()?;
    let x = bench.put_in(Memory::Arena(Arena::Gradients), x);
    let norm = bench.put_in(Memory::Arena(Arena::Activations), &[f32::NAN]);
    bench.run_all(&gradient_norm(x, None, norm));
    Some(bench.get::<f32>(norm)[0])
}

#[test]
fn norms_equal_the_reference() {
    // The last has more elements than the threads of all blocks take at once.
    for n in [1, 3, 15, 16, 1000, 16_385, 50_001, 1_100_003] {
        let x = noise::<f32>(7, n, 1.0);
        let expected = reference::norm(&wide(&x));
        let Some(found) = norm(&x) else { return };
        let error = (f64::from(found) - expected).abs() / expected;
        assert!(error < 2e-7, "{n}: {found} is not {expected}");
    }
}

/// A plain sum of equal values would round in the same direction again and again.
#[test]
fn a_thread_adds_thousands_of_squares_without_loss() {
    let Some(mut bench) = Bench::new() else { return };
    let x = vec![0.1f32; 1_100_000];
    let at_x = bench.put_in(Memory::Arena(Arena::Gradients), &x);
    let sum = bench.put_in(Memory::Arena(Arena::Activations), &[f32::NAN]);
    let arguments = vec![Argument::Read(at_x), Argument::Null, Argument::Write(sum), count(x.len())];
    bench.run(&Kernel { name: "gradient_squares".into(), grid: [1; 3], block: THREADS, arguments });
    let expected: f64 = wide(&x).iter().map(|x| x * x).sum();
    let error = (f64::from(bench.get::<f32>(sum)[0]) - expected).abs() / expected;
    assert!(error < 2e-7, "{error}");
}

/// The squares of scaled gradients would not fit f32.
#[test]
fn the_norm_of_scaled_gradients_is_that_of_plain_ones() {
    let Some(mut bench) = Bench::new() else { return };
    let x = noise::<f32>(7, 1000, 1.0);
    let scale = 2f32.powi(66);
    let scaled: Vec<f32> = x.iter().map(|x| scale * x).collect();
    let scaled = bench.put_in(Memory::Arena(Arena::Gradients), &scaled);
    let factor = bench.put_in(Memory::Arena(Arena::LossScale), &[scale]);
    let at = bench.put_in(Memory::Arena(Arena::Activations), &[f32::NAN]);
    bench.run_all(&gradient_norm(scaled, Some(factor), at));
    assert_eq!(Some(bench.get::<f32>(at)[0]), norm(&x));
}

#[test]
fn norms_that_are_not_finite_are_seen() {
    let check = |x: &[f32], expected: f32| {
        let Some(found) = norm(x) else { return };
        assert!(found == expected || found.is_nan() && expected.is_nan(), "{x:?}: {found}");
    };
    check(&[0.0; 5], 0.0);
    check(&[3.0, f32::INFINITY, 0.0, 1.0, 7.0], f32::INFINITY);
    check(&[3.0, f32::NAN, 0.0, f32::INFINITY, 7.0], f32::NAN);
    // The square of the first is beyond f32.
    check(&[1e30, 1.0, 0.0, 1.0, 7.0], f32::INFINITY);
}
