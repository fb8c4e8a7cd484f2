//! SGD with a rate for each parameter.

use enmasse_graph::optimizers::{Lars, Sgd};

use super::sgd::descend;
use super::{OptimizerOnReference, Rule};
use crate::ops::gradient_norm::norm;

impl OptimizerOnReference for Lars {
    fn apply(&self, rule: &Rule, w: &mut [f64], gradient: &[f64], state: &mut [&mut [f64]]) {
        let w_norm = norm(w);
        let g_norm = rule.clip * norm(gradient);
        let trust = match rule.adaptive && w_norm > 0.0 && g_norm > 0.0 {
            true => {
                let divisor = g_norm + rule.weight_decay * w_norm + f64::from(self.epsilon);
                f64::from(self.trust_coefficient) * w_norm / divisor
            }
            false => 1.0,
        };
        descend(&Sgd { momentum: self.momentum, nesterov: false }, rule, trust, w, gradient, state);
    }
}
