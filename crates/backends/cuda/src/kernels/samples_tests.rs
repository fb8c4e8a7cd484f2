//! Functions of logits and labels against the reference's, over odd sizes.

use enmasse_graph::Arena;
use enmasse_reference::ops as reference;

use super::*;
use crate::test_support::{Bench, assert_rounded, noise, wide};
use crate::work::Memory;

const ACTIVATIONS: Memory = Memory::Arena(Arena::Activations);
const INPUT: Memory = Memory::Arena(Arena::Input);

/// Samples and classes: fewer classes than a warp, a block or a multiple of one has threads, and more samples than blocks.
const SIZES: [[usize; 2]; 7] = [[1, 1], [1, 2], [5, 10], [7, 33], [3, 1000], [1100, 3], [2, 257]];

/// Logits with ties, and labels of all classes and places without a sample.
fn batch(samples: usize, classes: usize) -> (Vec<f32>, Vec<i32>) {
    let logits = noise::<f32>(3, samples * classes, 1.0).iter().map(|x| (4.0 * x).round() / 2.0).collect();
    (logits, (0..samples).map(|sample| (sample * 5 % (classes + 1)) as i32 - 1).collect())
}

/// Labels as the reference takes them.
fn classes_of(labels: &[i32]) -> Vec<f64> {
    labels.iter().map(|&label| label.into()).collect()
}

/// Checks the values that a kernel writes. `make` gets the constants and the place of the result.
#[track_caller]
fn check(bench: &mut Bench, expected: &[f64], make: impl Fn(&mut Constants, Span) -> Kernel) {
    let result = bench.put_in(ACTIVATIONS, &vec![f32::NAN; expected.len()]);
    let mut constants = Constants::default();
    let kernel = make(&mut constants, result);
    bench.constants(&constants);
    bench.run(&kernel);
    assert_rounded(&kernel.name, &bench.get::<f32>(result), expected, 1e-6);
}

#[test]
fn equal_the_reference() {
    for [samples, classes] in SIZES {
        let Some(mut bench) = Bench::new() else { return };
        let bench = &mut bench;
        let (logits, labels) = batch(samples, classes);
        let (x, y) = (wide(&logits), classes_of(&labels));
        let at_logits = bench.put_in(ACTIVATIONS, &logits);
        let at_labels = bench.put_in(INPUT, &labels);
        let unmixed = Labels { own: at_labels, mixture: None };
        check(bench, &reference::targets::targets(&y, None, classes), |_, to| targets(unmixed, to));
        let others: Vec<i32> = (0..samples).map(|sample| (sample * 3 % classes) as i32).collect();
        let lambdas: Vec<f32> = (0..samples).map(|sample| (sample * 5 % 9) as f32 / 8.0).collect();
        let mixed = Labels { mixture: Some([bench.put_in(INPUT, &others), bench.put_in(INPUT, &lambdas)]), ..unmixed };
        let mixture = Some([&classes_of(&others)[..], &wide(&lambdas)]);
        check(bench, &reference::targets::targets(&y, mixture, classes), |_, to| targets(mixed, to));
        for k in 1..=classes.min(6) {
            check(bench, &reference::top_k_correct::top_k_correct(&x, &y, classes, k), |_, to| {
                top_k_correct(k, at_logits, at_labels, to)
            });
        }
        check(bench, &reference::sum_classes::sum_classes(&x, classes), |_, to| sum_classes(at_logits, to));
        let at_dy = bench.put_in(ACTIVATIONS, &logits[..samples]);
        let dy = wide(&logits[..samples]);
        check(bench, &reference::sum_classes::sum_classes_backward(&dy, classes), |_, to| {
            sum_classes_backward(at_dy, to)
        });
        let factors = noise::<f32>(5, classes, 1.0);
        let expected = reference::scale_classes::scale_classes(&x, &factors);
        check(bench, &expected, |constants, to| scale_classes(&factors, at_logits, to, constants));
        check(bench, &reference::sample_sum::sample_sum_backward(&y, 0.25), |_, to| {
            sample_sum_backward(0.25, at_labels, to)
        });
        // Any value where there is no sample.
        let values: Vec<f32> = (0..samples).map(|at| if labels[at] < 0 { f32::NAN } else { logits[at] }).collect();
        let at_values = bench.put_in(ACTIVATIONS, &values);
        let expected = [reference::sample_sum::sample_sum(&wide(&values), &y, 0.25)];
        check(bench, &expected, |_, to| sample_sum(0.25, at_values, at_labels, to));
    }
}

#[test]
fn softmax_equals_the_reference() {
    for [samples, classes] in SIZES {
        let Some(mut bench) = Bench::new() else { return };
        let bench = &mut bench;
        let (small, _) = batch(samples, classes);
        // Values beyond the range of f32's exponentials, values far from zero, and special ones.
        let large = small.iter().map(|x| 300.0 * x + 500.0).collect();
        let far = small.iter().map(|x| x + 10_000.0).collect();
        let mut special = small.clone();
        special[0] = f32::NEG_INFINITY;
        special[samples * classes - 1] = f32::NAN;
        for x in [small, large, far, special] {
            let at_x = bench.put_in(ACTIVATIONS, &x);
            let y = reference::log_softmax::log_softmax(&wide(&x), classes);
            check(bench, &y, |_, to| log_softmax(classes, at_x, to));
            let y: Vec<f32> = y.iter().map(|&y| y as f32).collect();
            let dy = noise::<f32>(6, samples * classes, 1.0);
            let at_dy = bench.put_in(ACTIVATIONS, &dy);
            let at_y = bench.put_in(ACTIVATIONS, &y);
            let expected = reference::log_softmax::log_softmax_backward(&wide(&dy), &wide(&y), classes);
            check(bench, &expected, |_, to| log_softmax_backward(classes, at_dy, at_y, to));
        }
    }
}

#[test]
fn masked_places_are_zero_whatever_they_held() {
    for [samples, classes] in SIZES {
        let Some(mut bench) = Bench::new() else { return };
        let (logits, labels) = batch(samples, classes);
        let unknown = |at: usize| if labels[at / classes] < 0 { f32::NAN } else { logits[at] };
        let x: Vec<f32> = (0..logits.len()).map(unknown).collect();
        let at_labels = bench.put_in(INPUT, &labels);
        let expected = reference::mask_samples::mask(&wide(&x), &classes_of(&labels), classes);
        let at_x = bench.put_in(ACTIVATIONS, &x);
        check(&mut bench, &expected, |_, to| mask_samples(at_x, at_labels, to));
        bench.run(&mask_samples(at_x, at_labels, at_x));
        assert_rounded("mask_samples in place", &bench.get::<f32>(at_x), &expected, 0.0);
    }
}

#[test]
fn hits_with_non_finite_logits_equal_the_reference() {
    const SPECIAL: [f32; 5] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0];
    let Some(mut bench) = Bench::new() else { return };
    let logits: Vec<f32> =
        (0..125).flat_map(|code| [code % 5, code / 5 % 5, code / 25].map(|at| SPECIAL[at])).collect();
    let at_logits = bench.put_in(ACTIVATIONS, &logits);
    for (label, k) in (0..3).flat_map(|label| (1..=3).map(move |k| (label, k))) {
        let labels = vec![label; 125];
        let at_labels = bench.put_in(INPUT, &labels);
        let expected = reference::top_k_correct::top_k_correct(&wide(&logits), &classes_of(&labels), 3, k);
        check(&mut bench, &expected, |_, to| top_k_correct(k, at_logits, at_labels, to));
    }
}
