//! Every rule by hand.

use enmasse_graph::optimizers::{AdamW, Custom, CustomOptimizer, Lars, Sgd, UpdateStep};

use super::*;
use crate::test_support::assert_close;

/// Two steps on one weight that starts at 1, with gradients 2 and 4 and a learning rate of 0.5.
fn check(optimizer: impl Into<Optimizer>, weight_decay: f64, after_one: f64, after_two: f64) {
    let optimizer = &optimizer.into();
    let mut state = vec![vec![0.0]; optimizer.state_names().len()];
    let mut w = [1.0];
    for (step, gradient, expected) in [(1, 2.0, after_one), (2, 4.0, after_two)] {
        let rule = Rule { optimizer, weight_decay, learning_rate: 0.5, adaptive: true, clip: 1.0, step };
        rule.update(&mut w, &[gradient], state.iter_mut().map(Vec::as_mut_slice).collect());
        assert_close(&w, &[expected]);
    }
}

#[test]
fn sgd_by_hand() {
    let sgd = |momentum, nesterov| Sgd { momentum, nesterov };
    check(sgd(0.0, false), 0.0, 0.0, -2.0);
    // The buffer is 2, then 0.5 * 2 + 4 = 5.
    check(sgd(0.5, false), 0.0, 0.0, -2.5);
    // Steps 2 + 0.5 * 2 = 3, then 4 + 0.5 * 5 = 6.5.
    check(sgd(0.5, true), 0.0, -0.5, -3.75);
    // Gradients 2 + 0.5 * 1, then 4 + 0.5 * -0.25.
    check(sgd(0.0, false), 0.5, -0.25, -0.25 - 0.5 * 3.875);
    // Buffer 2.5 takes w to -0.25; then 0.5 * 2.5 + 3.875 = 5.125.
    check(sgd(0.5, false), 0.5, -0.25, -0.25 - 0.5 * 5.125);
}

#[test]
fn lars_by_hand() {
    let lars = |momentum| Lars { momentum, trust_coefficient: 0.5, epsilon: 1.0 };
    // Trust 0.5 * 1 / (2 + 1), then 0.5 * 5 / 6 / (4 + 1).
    let first = 1.0 - 0.5 * 2.0 / 6.0;
    let second = 4.0 * (0.5 * 5.0 / 6.0 / 5.0);
    check(lars(0.0), 0.0, first, first - 0.5 * second);
    check(lars(0.5), 0.0, first, first - 0.5 * (0.5 * 2.0 / 6.0 + second));
    // Decay is part of the divisor, and of the direction that is scaled.
    let first = 1.0 - 0.5 * (0.5 / (2.0 + 0.5 + 1.0)) * 2.5;
    check(lars(0.0), 0.5, first, first - 0.5 * (0.5 * first / (4.0 + 0.5 * first + 1.0)) * (4.0 + 0.5 * first));
    // Weights that are zero or not adaptive are updated as by SGD.
    for (adaptive, start) in [(true, 0.0), (false, 3.0)] {
        let optimizer = &lars(0.0).into();
        let rule = Rule { optimizer, weight_decay: 0.0, learning_rate: 0.5, adaptive, clip: 1.0, step: 1 };
        let mut w = [start];
        rule.update(&mut w, &[2.0], Vec::new());
        assert_close(&w, &[start - 1.0]);
    }
}

#[test]
fn a_factor_of_gradients_is_for_every_rule() {
    let sgd = Optimizer::from(Sgd { momentum: 0.0, nesterov: false });
    for optimizer in &[sgd, AdamW { betas: [0.5; 2], epsilon: 1.0 }.into(), Custom::new(Halves).into()] {
        let update = |clip: f64, gradient: f64| {
            let rule = Rule { optimizer, weight_decay: 0.5, learning_rate: 0.5, adaptive: false, clip, step: 1 };
            let mut w = [1.0];
            let mut state = vec![vec![0.0]; optimizer.state_names().len()];
            rule.update(&mut w, &[gradient], state.iter_mut().map(Vec::as_mut_slice).collect());
            w
        };
        assert_eq!(update(0.5, 4.0), update(1.0, 2.0), "{optimizer}");
    }
}

#[test]
fn adamw_by_hand() {
    let adamw = AdamW { betas: [0.5, 0.75], epsilon: 0.0 };
    // Step 1: moments 1 and 1, corrected 2 and 4: the direction is 2 / 2.
    // Step 2: moments 0.5 + 2 = 2.5 and 0.75 + 4 = 4.75, corrected by 0.75 and 0.4375.
    let second = 0.5 * (2.5 / 0.75) / (4.75f64 / 0.4375).sqrt();
    check(adamw, 0.0, 0.5, 0.5 - second);
    // Decay multiplies w by 1 - 0.5 * 0.5 first.
    check(adamw, 0.5, 0.25, 0.25 * 0.75 - second);
}

#[test]
fn adamw_epsilon_is_outside_the_root() {
    let optimizer = AdamW { betas: [0.5, 0.75], epsilon: 2.0 };
    // 1 - 0.5 * 2 / (2 + 2).
    check(optimizer, 0.0, 0.75, 0.75 - 0.5 * (2.5 / 0.75) / ((4.75f64 / 0.4375).sqrt() + 2.0));
}

/// Sums halves of the gradients, and decays by the number of the step.
#[derive(Debug)]
struct Halves;

impl CustomOptimizer for Halves {
    fn name(&self) -> &'static str {
        "halves"
    }

    fn state_names(&self) -> &'static [&'static str] {
        &["sum"]
    }

    fn update(&self, step: &UpdateStep, weights: &mut [f64], gradients: &[f64], state: &mut [&mut [f64]]) {
        for (i, w) in weights.iter_mut().enumerate() {
            state[0][i] += 0.5 * gradients[i];
            *w -= step.learning_rate * (state[0][i] + step.weight_decay * step.number as f64 * *w);
        }
    }
}

#[test]
fn an_own_rule_by_hand() {
    // The sum is 1, then 3.
    check(Custom::new(Halves), 0.0, 0.5, -1.0);
    // Decay 0.5 * 1 * 1, then 0.5 * 2 * 0.25.
    check(Custom::new(Halves), 0.5, 0.25, 0.25 - 0.5 * (3.0 + 0.25));
}
