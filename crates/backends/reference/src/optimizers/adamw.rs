//! Adam with decoupled weight decay.

use enmasse_graph::optimizers::AdamW;

use super::{OptimizerOnReference, Rule};

impl OptimizerOnReference for AdamW {
    fn apply(&self, rule: &Rule, w: &mut [f64], gradient: &[f64], state: &mut [&mut [f64]]) {
        let [first, second] = state else { panic!("AdamW keeps two moments, got {}", state.len()) };
        let betas = self.betas.map(f64::from);
        let epsilon = f64::from(self.epsilon);
        let correction = betas.map(|beta| 1.0 - beta.powf(rule.step as f64));
        for (i, w) in w.iter_mut().enumerate() {
            let g = rule.clip * gradient[i];
            *w *= 1.0 - rule.learning_rate * rule.weight_decay;
            first[i] = betas[0] * first[i] + (1.0 - betas[0]) * g;
            second[i] = betas[1] * second[i] + (1.0 - betas[1]) * g * g;
            let std = (second[i] / correction[1]).sqrt() + epsilon;
            *w -= rule.learning_rate * (first[i] / correction[0]) / std;
        }
    }
}
