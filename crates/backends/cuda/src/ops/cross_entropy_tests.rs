//! The loss and its gradient against the reference's, over odd sizes.

use enmasse_graph::Arena;
use enmasse_reference::ops::cross_entropy as reference;
use enmasse_reference::ops::targets::targets;

use super::*;
use crate::test_support::{Bench, assert_rounded, noise, wide};
use crate::work::Memory;

const ACTIVATIONS: Memory = Memory::Arena(Arena::Activations);
const INPUT: Memory = Memory::Arena(Arena::Input);

/// Checks a loss of labels alone, and of mixtures with other labels.
#[track_caller]
fn check(logits: &[f32], labels: &[i32], scale: f32, smoothing: f32) {
    check_mixture(logits, labels, None, scale, smoothing);
    let classes = (logits.len() / labels.len()) as i32;
    let others: Vec<i32> = (0..labels.len() as i32).map(|sample| sample * 3 % classes).collect();
    // All, none, and parts.
    let lambdas: Vec<f32> = (0..labels.len()).map(|sample| (sample * 5 % 9) as f32 / 8.0).collect();
    check_mixture(logits, labels, Some((&others, &lambdas)), scale, smoothing);
}

/// Probabilities, loss and correct samples on the bench, against those of the reference. The gradient in place and elsewhere, too.
#[track_caller]
fn check_mixture(logits: &[f32], labels: &[i32], mixture: Option<(&[i32], &[f32])>, scale: f32, smoothing: f32) {
    let Some(mut bench) = Bench::new() else { return };
    let classes = logits.len() / labels.len();
    let at_logits = bench.put_in(ACTIVATIONS, logits);
    let own = bench.put_in(INPUT, labels);
    let placed = mixture.map(|(others, lambdas)| [bench.put_in(INPUT, others), bench.put_in(INPUT, lambdas)]);
    let at_labels = Labels { own, mixture: placed };
    let mut room = |elements| bench.put_in(ACTIVATIONS, &vec![f32::NAN; elements]);
    let p = room(logits.len());
    let dlogits = room(logits.len());
    let loss = room(1);
    let correct = room(1);
    let c = CrossEntropy { scale, smoothing };
    bench.run_all(&cross_entropy(&c, at_logits, at_labels, p, loss, correct));
    let what = format!("{} x {classes}, smoothing {smoothing}", labels.len());
    let of_classes = |labels: &[i32]| labels.iter().map(|&label| label.into()).collect::<Vec<f64>>();
    let (x, y) = (wide(logits), of_classes(labels));
    let mixture = mixture.map(|(others, lambdas)| [of_classes(others), wide(lambdas)]);
    let mixture = mixture.as_ref().map(|[others, lambdas]| [&others[..], &lambdas[..]]);
    let targets = targets(&y, mixture, classes);
    let expected = reference::cross_entropy(&x, &y, &targets, classes, scale, smoothing);
    let probabilities = bench.get::<f32>(p);
    assert_rounded(&format!("probabilities {what}"), &probabilities, &expected.probabilities, 1e-6);
    assert_rounded(&format!("loss {what}"), &bench.get::<f32>(loss), &[expected.loss], 1e-6);
    assert_rounded(&format!("hits {what}"), &bench.get::<f32>(correct), &[expected.correct], 0.0);
    let expected = reference::cross_entropy_backward(&wide(&probabilities), &y, &targets, classes, scale, smoothing);
    bench.run(&cross_entropy_backward(&c, p, at_labels, dlogits));
    // The error is relative to probabilities and targets, whose difference may be much smaller.
    for (at, (found, expected)) in bench.get::<f32>(dlogits).into_iter().zip(expected).enumerate() {
        let near =
            (f64::from(found) - expected).abs() <= 1e-7 * f64::from(scale) || (found.is_nan() && expected.is_nan());
        assert!(near, "gradient {what} [{at}]: {found} instead of {expected}");
    }
    bench.run(&cross_entropy_backward(&c, p, at_labels, p));
    assert_eq!(bench.get::<u32>(p), bench.get::<u32>(dlogits), "in place");
}

#[test]
fn equals_the_reference() {
    for (samples, classes) in [(1, 1), (1, 2), (5, 10), (7, 33), (3, 1000), (1100, 3), (2, 257)] {
        let noise = noise::<f32>(1, samples * classes, 1.0);
        let labels: Vec<i32> = (0..samples).map(|i| (i * 5 % (classes + 1)) as i32 - 1).collect();
        for smoothing in [0.0, 0.1, 1.0] {
            // Spread out, far from zero, and with ties.
            check(&noise.iter().map(|v| v * 9.0 + 500.0).collect::<Vec<_>>(), &labels, 0.25, smoothing);
            check(&noise.iter().map(|v| v * 300.0).collect::<Vec<_>>(), &labels, 1.0, smoothing);
            check(&noise.iter().map(|v| (v * 2.0).round()).collect::<Vec<_>>(), &labels, 1.0, smoothing);
        }
    }
}

#[test]
fn special_logits_equal_the_reference() {
    const SPECIAL: [f32; 6] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 2.0];
    for code in 0..216usize {
        let row = [code % 6, code / 6 % 6, code / 36].map(|at| SPECIAL[at]);
        for smoothing in [0.0, 0.75, 1.0] {
            check(&row, &[(code % 4) as i32 - 1], 0.5, smoothing);
        }
    }
}
