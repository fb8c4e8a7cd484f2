//! Stochastic gradient descent.

use enmasse_graph::optimizers::Sgd;

use super::{OptimizerOnReference, Rule};

impl OptimizerOnReference for Sgd {
    fn apply(&self, rule: &Rule, w: &mut [f64], gradient: &[f64], state: &mut [&mut [f64]]) {
        descend(self, rule, 1.0, w, gradient, state);
    }
}

/// SGD in which gradients, including weight decay, are multiplied by `trust`.
pub(super) fn descend(sgd: &Sgd, rule: &Rule, trust: f64, w: &mut [f64], gradient: &[f64], state: &mut [&mut [f64]]) {
    let momentum = f64::from(sgd.momentum);
    let mut buffer = state.first_mut();
    for (i, w) in w.iter_mut().enumerate() {
        let g = trust * (rule.clip * gradient[i] + rule.weight_decay * *w);
        let direction = match &mut buffer {
            None => g,
            Some(buffer) => {
                buffer[i] = momentum * buffer[i] + g;
                if sgd.nesterov { g + momentum * buffer[i] } else { buffer[i] }
            }
        };
        *w -= rule.learning_rate * direction;
    }
}
