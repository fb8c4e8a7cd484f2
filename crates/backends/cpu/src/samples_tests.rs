//! Functions of logits and labels against the reference's, over odd sizes.

use enmasse_reference::ops as reference;

use super::*;
use crate::guard::{Edge, Guarded, GuardedContext};
use crate::isa::Isa;
use crate::test_support::{assert_near, noise};
use crate::workspace::Workspace;

/// Labels of all classes, places without a label, and logits with ties.
fn batch(samples: usize, classes: usize) -> (Vec<f32>, Vec<i32>) {
    let logits = noise(3, samples * classes).iter().map(|x| (4.0 * x).round() / 2.0).collect();
    (logits, (0..samples).map(|sample| (sample * 5 % (classes + 1)) as i32 - 1).collect())
}

fn wide<T: Copy + Into<f64>>(values: &[T]) -> Vec<f64> {
    values.iter().map(|&value| value.into()).collect()
}

/// Checks the `len` values that `kernel` writes, with one thread and with three, at either edge of accessible memory.
fn check(what: &str, len: usize, expected: &[f64], kernel: impl Fn(&mut Context, Edge, Region<f32>)) {
    for (threads, edge) in [(1, Edge::First), (3, Edge::Last)] {
        let context = &mut GuardedContext::new(edge, threads, Isa::Portable, Workspace::default());
        let mut found = Guarded::filled(edge, f32::NAN, len);
        kernel(context, edge, Region::of_mut(&mut found));
        assert_near(what, &found, expected, 1e-6);
    }
}

#[test]
fn equal_the_reference() {
    for (samples, classes) in [(1, 1), (1, 2), (5, 10), (7, 33), (64, 3)] {
        let (logits, labels) = batch(samples, classes);
        let (x, y) = (wide(&logits), wide(&labels));
        let place = |edge, values: &[f32]| Guarded::new(edge, values);
        let others: Vec<i32> = (0..samples).map(|sample| (sample * 3 % classes) as i32).collect();
        let lambdas: Vec<f32> = (0..samples).map(|sample| (sample * 5 % 9) as f32 / 8.0).collect();
        let mixture = [wide(&others), wide(&lambdas)];
        for mixture in [None, Some([&mixture[0][..], &mixture[1]])] {
            let expected = reference::targets::targets(&y, mixture, classes);
            check("targets", samples * classes, &expected, |c, edge, found| {
                let labels = Guarded::new(edge, &labels);
                let others = Guarded::new(edge, &others);
                let lambdas = place(edge, &lambdas);
                let mixture = mixture.map(|_| (Region::of(&others), Region::of(&lambdas)));
                // SAFETY: live buffers of the right sizes, here and below.
                unsafe { targets(c, Labels { own: Region::of(&labels), mixture }, found) };
            });
        }
        for k in 1..=classes.min(6) {
            check(
                "top_k_correct",
                samples,
                &reference::top_k_correct::top_k_correct(&x, &y, classes, k),
                |c, edge, found| {
                    let logits = place(edge, &logits);
                    let labels = Guarded::new(edge, &labels);
                    // SAFETY: as above.
                    unsafe { top_k_correct(c, k, Region::of(&logits), Region::of(&labels), found) };
                },
            );
        }
        check("sum_classes", samples, &reference::sum_classes::sum_classes(&x, classes), |c, edge, found| {
            let logits = place(edge, &logits);
            // SAFETY: as above.
            unsafe { sum_classes(c, Region::of(&logits), found) };
        });
        let dy = &logits[..samples];
        let expected = reference::sum_classes::sum_classes_backward(&wide(dy), classes);
        check("sum_classes_backward", samples * classes, &expected, |c, edge, found| {
            let dy = place(edge, dy);
            // SAFETY: as above.
            unsafe { sum_classes_backward(c, Region::of(&dy), found) };
        });
        let factors = &noise(5, classes);
        check(
            "scale_classes",
            samples * classes,
            &reference::scale_classes::scale_classes(&x, factors),
            |c, edge, found| {
                let logits = place(edge, &logits);
                // SAFETY: as above.
                unsafe { scale_classes(c, factors, Region::of(&logits), found) };
            },
        );
        // Values beyond the range of f32's exponentials.
        let large: Vec<f32> = logits.iter().map(|x| 300.0 * x + 500.0).collect();
        for x in [&logits, &large] {
            let y = reference::log_softmax::log_softmax(&wide(x), classes);
            check("log_softmax", samples * classes, &y, |c, edge, found| {
                let x = place(edge, x);
                // SAFETY: as above.
                unsafe { log_softmax(c, classes, Region::of(&x), found) };
            });
            let y: Vec<f32> = y.iter().map(|&y| y as f32).collect();
            let dy = noise(6, samples * classes);
            let expected = reference::log_softmax::log_softmax_backward(&wide(&dy), &wide(&y), classes);
            check("log_softmax_backward", samples * classes, &expected, |c, edge, found| {
                let (dy, y) = (place(edge, &dy), place(edge, &y));
                // SAFETY: as above.
                unsafe { log_softmax_backward(c, classes, Region::of(&dy), Region::of(&y), found) };
            });
        }
        check(
            "sample_sum_backward",
            samples,
            &reference::sample_sum::sample_sum_backward(&y, 0.25),
            |_, edge, found| {
                let labels = Guarded::new(edge, &labels);
                // SAFETY: as above.
                unsafe { sample_sum_backward(0.25, Region::of(&labels), found) };
            },
        );
        let unknown = |at: usize| if labels[at / classes] < 0 { f32::NAN } else { logits[at] };
        let masked: Vec<f32> = (0..logits.len()).map(unknown).collect();
        check(
            "mask",
            samples * classes,
            &reference::mask_samples::mask(&wide(&masked), &y, classes),
            |c, edge, found| {
                let labels = Guarded::new(edge, &labels);
                // SAFETY: as above; the result coincides with the operand.
                unsafe {
                    found.slice_mut(0, masked.len()).copy_from_slice(&masked);
                    mask(c, found, Region::of(&labels), found);
                }
            },
        );
        // Any value where there is no sample.
        let values: Vec<f32> = dy.iter().zip(&labels).map(|(x, l)| if *l < 0 { f32::NAN } else { *x }).collect();
        let expected = reference::sample_sum::sample_sum(&wide(&values), &y, 0.25);
        check("sample_sum", 1, &[expected], |_, edge, found| {
            let values = place(edge, &values);
            let labels = Guarded::new(edge, &labels);
            // SAFETY: as above.
            unsafe { sample_sum(0.25, Region::of(&values), Region::of(&labels), found) };
        });
    }
}

#[test]
fn hits_with_non_finite_logits_equal_the_reference() {
    const SPECIAL: [f32; 5] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0];
    let row = |code: usize| [code % 5, code / 5 % 5, code / 25].map(|at| SPECIAL[at]);
    for (row, label, k) in (0..125).flat_map(|code| (0..9).map(move |at| (row(code), at % 3, 1 + at / 3))) {
        let expected = reference::top_k_correct::top_k_correct(&wide(&row), &[label as f64], 3, k)[0];
        assert_eq!(f64::from(u8::from(is_top_k_correct(&row, label, k))), expected, "{row:?} {label} {k}");
    }
}
