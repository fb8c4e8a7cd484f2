//! The optimisers, on one parameter tensor at a time.

use enmasse_graph::Optimizer;

/// What one update does to elements of one group.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The optimiser.
    pub optimizer: Optimizer,
    /// Weight decay of the group.
    pub weight_decay: f64,
    /// Learning rate of this step for the group.
    pub learning_rate: f64,
    /// Number of the update, from 1.
    pub step: u64,
}

impl Rule {
    /// Updates `w` in place, and `state`, which has one tensor per name of [`Optimizer::state_names`].
    pub fn update(&self, w: &mut [f64], gradient: &[f64], mut state: Vec<&mut [f64]>) {
        let Rule { weight_decay, learning_rate, .. } = *self;
        match self.optimizer {
            Optimizer::Sgd { momentum, nesterov } => {
                let momentum = f64::from(momentum);
                for (i, w) in w.iter_mut().enumerate() {
                    let g = gradient[i] + weight_decay * *w;
                    let direction = match state.first_mut() {
                        None => g,
                        Some(buffer) => {
                            buffer[i] = momentum * buffer[i] + g;
                            if nesterov { g + momentum * buffer[i] } else { buffer[i] }
                        }
                    };
                    *w -= learning_rate * direction;
                }
            }
            Optimizer::AdamW { betas, epsilon } => {
                let [first, second] = &mut state[..] else { panic!("AdamW keeps two moments, got {}", state.len()) };
                let (betas, epsilon) = (betas.map(f64::from), f64::from(epsilon));
                let correction = betas.map(|beta| 1.0 - beta.powf(self.step as f64));
                for (i, w) in w.iter_mut().enumerate() {
                    let g = gradient[i];
                    *w *= 1.0 - learning_rate * weight_decay;
                    first[i] = betas[0] * first[i] + (1.0 - betas[0]) * g;
                    second[i] = betas[1] * second[i] + (1.0 - betas[1]) * g * g;
                    let deviation = (second[i] / correction[1]).sqrt() + epsilon;
                    *w -= learning_rate * (first[i] / correction[0]) / deviation;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::assert_close;
    use super::*;

    /// Two steps on one weight that starts at 1, with gradients 2 and 4 and a learning rate of 0.5.
    fn check(optimizer: Optimizer, weight_decay: f64, after_one: f64, after_two: f64) {
        let mut state = vec![vec![0.0]; optimizer.state_names().len()];
        let mut w = [1.0];
        for (step, gradient, expected) in [(1, 2.0, after_one), (2, 4.0, after_two)] {
            let rule = Rule { optimizer, weight_decay, learning_rate: 0.5, step };
            rule.update(&mut w, &[gradient], state.iter_mut().map(Vec::as_mut_slice).collect());
            assert_close(&w, &[expected]);
        }
    }

    #[test]
    fn sgd_by_hand() {
        let sgd = |momentum, nesterov| Optimizer::Sgd { momentum, nesterov };
        check(sgd(0.0, false), 0.0, 0.0, -2.0);
        // Buffer 2, then 0.5 * 2 + 4 = 5.
        check(sgd(0.5, false), 0.0, 0.0, -2.5);
        // Steps 2 + 0.5 * 2 = 3, then 4 + 0.5 * 5 = 6.5.
        check(sgd(0.5, true), 0.0, -0.5, -3.75);
        // Gradients 2 + 0.5 * 1, then 4 + 0.5 * -0.25.
        check(sgd(0.0, false), 0.5, -0.25, -0.25 - 0.5 * 3.875);
        // Buffer 2.5 takes w to -0.25; then 0.5 * 2.5 + 3.875 = 5.125.
        check(sgd(0.5, false), 0.5, -0.25, -0.25 - 0.5 * 5.125);
    }

    #[test]
    fn adamw_by_hand() {
        let adamw = Optimizer::AdamW { betas: [0.5, 0.75], epsilon: 0.0 };
        // Step 1: moments 1 and 1, corrected 2 and 4: the direction is 2 / 2.
        // Step 2: moments 0.5 + 2 = 2.5 and 0.75 + 4 = 4.75, corrected by 0.75 and 0.4375.
        let second = 0.5 * (2.5 / 0.75) / (4.75f64 / 0.4375).sqrt();
        check(adamw, 0.0, 0.5, 0.5 - second);
        // Decay multiplies w by 1 - 0.5 * 0.5 first.
        check(adamw, 0.5, 0.25, 0.25 * 0.75 - second);
    }

    #[test]
    fn adamw_epsilon_is_outside_the_root() {
        let optimizer = Optimizer::AdamW { betas: [0.5, 0.75], epsilon: 2.0 };
        // 1 - 0.5 * 2 / (2 + 2).
        check(optimizer, 0.0, 0.75, 0.75 - 0.5 * (2.5 / 0.75) / ((4.75f64 / 0.4375).sqrt() + 2.0));
    }
}
