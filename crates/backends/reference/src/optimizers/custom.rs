//! Optimisers of a program's own.

use enmasse_graph::optimizers::{Custom, UpdateStep};

use super::{OptimizerOnReference, Rule};

impl OptimizerOnReference for Custom {
    fn apply(&self, rule: &Rule, w: &mut [f64], gradient: &[f64], state: &mut [&mut [f64]]) {
        let Rule { learning_rate, weight_decay, step: number, .. } = *rule;
        let gradient: Vec<f64> = gradient.iter().map(|g| rule.clip * g).collect();
        self.update(&UpdateStep { learning_rate, weight_decay, number }, w, &gradient, state);
    }
}
