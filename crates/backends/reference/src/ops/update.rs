//! The optimisers, on one parameter tensor at a time.

use enmasse_device::DeviceError;
use enmasse_graph::ops::Operation;
use enmasse_graph::{Optimizer, Update, UpdateOperands};
use enmasse_tensor::DType;

use super::gradient_norm::norm;
use super::loss_scale::applied;
use super::{Call, unsupported};

/// The settings of one update, for elements of one group.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The optimiser.
    pub optimizer: Optimizer,
    /// Weight decay of the group.
    pub weight_decay: f64,
    /// Learning rate of this step for the group.
    pub learning_rate: f64,
    /// Whether LARS adapts the rate to the norms of these elements.
    pub adaptive: bool,
    /// Factor of the gradients by clipping and by the loss scale; 1 without both.
    pub clip: f64,
    /// Number of the update, from 1.
    pub step: u64,
}

impl Rule {
    /// Updates `w` in place, and `state`, which has one tensor per name of [`Optimizer::state_names`].
    pub fn update(&self, w: &mut [f64], gradient: &[f64], mut state: Vec<&mut [f64]>) {
        let Rule { weight_decay, learning_rate, clip, .. } = *self;
        match self.optimizer {
            Optimizer::Sgd { momentum, nesterov } => {
                self.descend(momentum.into(), nesterov, 1.0, w, gradient, state.first_mut());
            }
            Optimizer::Lars { momentum, trust_coefficient, epsilon } => {
                let (w_norm, g_norm) = (norm(w), clip * norm(gradient));
                let trust = match self.adaptive && w_norm > 0.0 && g_norm > 0.0 {
                    true => {
                        f64::from(trust_coefficient) * w_norm / (g_norm + weight_decay * w_norm + f64::from(epsilon))
                    }
                    false => 1.0,
                };
                self.descend(momentum.into(), false, trust, w, gradient, state.first_mut());
            }
            Optimizer::AdamW { betas, epsilon } => {
                let [first, second] = &mut state[..] else { panic!("AdamW keeps two moments, got {}", state.len()) };
                let (betas, epsilon) = (betas.map(f64::from), f64::from(epsilon));
                let correction = betas.map(|beta| 1.0 - beta.powf(self.step as f64));
                for (i, w) in w.iter_mut().enumerate() {
                    let g = clip * gradient[i];
                    *w *= 1.0 - learning_rate * weight_decay;
                    first[i] = betas[0] * first[i] + (1.0 - betas[0]) * g;
                    second[i] = betas[1] * second[i] + (1.0 - betas[1]) * g * g;
                    let std = (second[i] / correction[1]).sqrt() + epsilon;
                    *w -= learning_rate * (first[i] / correction[0]) / std;
                }
            }
        }
    }

    /// SGD in which gradients, including weight decay, are multiplied by `trust`.
    fn descend(
        &self,
        momentum: f64,
        nesterov: bool,
        trust: f64,
        w: &mut [f64],
        gradient: &[f64],
        mut buffer: Option<&mut &mut [f64]>,
    ) {
        for (i, w) in w.iter_mut().enumerate() {
            let g = trust * (self.clip * gradient[i] + self.weight_decay * *w);
            let direction = match &mut buffer {
                None => g,
                Some(buffer) => {
                    buffer[i] = momentum * buffer[i] + g;
                    if nesterov { g + momentum * buffer[i] } else { buffer[i] }
                }
            };
            *w -= self.learning_rate * direction;
        }
    }
}

/// The factor by which PyTorch's `clip_grad_norm_` multiplies gradients with this norm; NaN if the norm is NaN.
pub fn clip_factor(limit: f32, norm: f64) -> f64 {
    let factor = f64::from(limit) / (norm + 1e-6);
    if factor > 1.0 { 1.0 } else { factor }
}

/// The parameters after a step, and then their state.
fn updated(update: &Update, call: &Call) -> Result<Vec<Vec<f64>>, DeviceError> {
    let (step, changes) = (call.step, update.changes(call.rest.len()));
    let UpdateOperands { parameters, norm, .. } =
        update.operands(&step.node.inputs).ok_or_else(|| unsupported(step.node))?;
    let mut changed: Vec<Vec<f64>> = call.rest[changes].iter().map(|values| values.to_vec()).collect();
    let Some((unscale, number)) = applied(call, update.scaled) else { return Ok(changed) };
    let clip = match (update.clip_norm, norm) {
        (Some(limit), Some(norm)) => clip_factor(limit, call.shard.read(step.plan, norm)?[0]),
        _ => 1.0,
    };
    for (index, (&parameter, gradient)) in parameters.iter().zip(call.rest).enumerate() {
        let first = step.plan.slot(parameter).offset / DType::F32.size();
        let mut tensors: Vec<_> = changed.iter_mut().skip(index).step_by(parameters.len()).collect();
        let [w, state @ ..] = &mut tensors[..] else { continue };
        for range in &update.ranges {
            let start = range.start.max(first) - first;
            let end = range.end().min(first + w.len()).saturating_sub(first);
            if start < end {
                let rule = Rule {
                    optimizer: update.optimizer,
                    weight_decay: range.group.weight_decay.into(),
                    learning_rate: f64::from(step.inputs.learning_rate) * f64::from(range.group.learning_rate_scale),
                    adaptive: range.adaptive,
                    clip: clip * unscale,
                    step: number,
                };
                let state = state.iter_mut().map(|values| &mut values[start..end]).collect();
                rule.update(&mut w[start..end], &gradient[start..end], state);
            }
        }
    }
    Ok(changed)
}

each_shard!(Update, |update, call, []| updated(update, call)?);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::assert_close;

    /// Two steps on one weight that starts at 1, with gradients 2 and 4 and a learning rate of 0.5.
    fn check(optimizer: Optimizer, weight_decay: f64, after_one: f64, after_two: f64) {
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
        let sgd = |momentum, nesterov| Optimizer::Sgd { momentum, nesterov };
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
        let lars = |momentum| Optimizer::Lars { momentum, trust_coefficient: 0.5, epsilon: 1.0 };
        // Trust 0.5 * 1 / (2 + 1), then 0.5 * 5 / 6 / (4 + 1).
        let (first, second) = (1.0 - 0.5 * 2.0 / 6.0, 4.0 * (0.5 * 5.0 / 6.0 / 5.0));
        check(lars(0.0), 0.0, first, first - 0.5 * second);
        check(lars(0.5), 0.0, first, first - 0.5 * (0.5 * 2.0 / 6.0 + second));
        // Decay is part of the divisor, and of the direction that is scaled.
        let first = 1.0 - 0.5 * (0.5 / (2.0 + 0.5 + 1.0)) * 2.5;
        check(lars(0.0), 0.5, first, first - 0.5 * (0.5 * first / (4.0 + 0.5 * first + 1.0)) * (4.0 + 0.5 * first));
        // Weights that are zero or not adaptive are updated as by SGD.
        for (adaptive, start) in [(true, 0.0), (false, 3.0)] {
            let rule =
                Rule { optimizer: lars(0.0), weight_decay: 0.0, learning_rate: 0.5, adaptive, clip: 1.0, step: 1 };
            let mut w = [start];
            rule.update(&mut w, &[2.0], Vec::new());
            assert_close(&w, &[start - 1.0]);
        }
    }

    #[test]
    fn clipping_by_hand() {
        let check = |limit: f32, norm: f64, expected: f64| {
            let found = clip_factor(limit, norm);
            assert!(found == expected || found.is_nan() && expected.is_nan(), "{limit} {norm}: {found}");
        };
        check(2.0, 0.0, 1.0);
        check(2.0, 1.5, 1.0);
        check(2.0, 8.0, 2.0 / (8.0 + 1e-6));
        check(2.0, f64::INFINITY, 0.0);
        check(2.0, f64::NAN, f64::NAN);
        // A factor of 0.5 equals half the gradient for every rule.
        for optimizer in
            [Optimizer::Sgd { momentum: 0.0, nesterov: false }, Optimizer::AdamW { betas: [0.5; 2], epsilon: 1.0 }]
        {
            let update = |clip: f64, gradient: f64| {
                let rule = Rule { optimizer, weight_decay: 0.5, learning_rate: 0.5, adaptive: false, clip, step: 1 };
                let (mut w, mut state) = ([1.0], vec![vec![0.0]; optimizer.state_names().len()]);
                rule.update(&mut w, &[gradient], state.iter_mut().map(Vec::as_mut_slice).collect());
                w
            };
            assert_eq!(update(0.5, 4.0), update(1.0, 2.0), "{optimizer}");
        }
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
