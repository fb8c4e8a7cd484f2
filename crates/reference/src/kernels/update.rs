//! The optimisers, on one parameter tensor at a time.

use enmasse_graph::Optimizer;

/// Updates `w` in place, and `state`, which has one tensor per name of [`Optimizer::state_names`]. `step` counts from
/// 1.
pub fn update(
    optimizer: &Optimizer,
    learning_rate: f64,
    step: u64,
    w: &mut [f64],
    gradient: &[f64],
    state: &mut [Vec<f64>],
) {
    match *optimizer {
        Optimizer::Sgd { momentum, weight_decay, nesterov } => {
            let (momentum, weight_decay) = (f64::from(momentum), f64::from(weight_decay));
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
        Optimizer::AdamW { betas, epsilon, weight_decay } => {
            let [first, second] = state else { panic!("AdamW keeps two moments, got {}", state.len()) };
            let (betas, epsilon) = (betas.map(f64::from), f64::from(epsilon));
            let correction = betas.map(|beta| 1.0 - beta.powf(step as f64));
            for (i, w) in w.iter_mut().enumerate() {
                let g = gradient[i];
                *w *= 1.0 - learning_rate * f64::from(weight_decay);
                first[i] = betas[0] * first[i] + (1.0 - betas[0]) * g;
                second[i] = betas[1] * second[i] + (1.0 - betas[1]) * g * g;
                let deviation = (second[i] / correction[1]).sqrt() + epsilon;
                *w -= learning_rate * (first[i] / correction[0]) / deviation;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::assert_close;
    use super::*;

    /// Two steps on one weight that starts at 1, with gradients 2 and 4 and a learning rate of 0.5.
    fn check(optimizer: Optimizer, after_one: f64, after_two: f64) {
        let mut state = vec![vec![0.0]; optimizer.state_names().len()];
        let mut w = [1.0];
        update(&optimizer, 0.5, 1, &mut w, &[2.0], &mut state);
        assert_close(&w, &[after_one]);
        update(&optimizer, 0.5, 2, &mut w, &[4.0], &mut state);
        assert_close(&w, &[after_two]);
    }

    #[test]
    fn sgd_by_hand() {
        let sgd = |momentum, weight_decay, nesterov| Optimizer::Sgd { momentum, weight_decay, nesterov };
        check(sgd(0.0, 0.0, false), 0.0, -2.0);
        // Buffer 2, then 0.5 * 2 + 4 = 5.
        check(sgd(0.5, 0.0, false), 0.0, -2.5);
        // Steps 2 + 0.5 * 2 = 3, then 4 + 0.5 * 5 = 6.5.
        check(sgd(0.5, 0.0, true), -0.5, -3.75);
        // Gradients 2 + 0.5 * 1, then 4 + 0.5 * -0.25.
        check(sgd(0.0, 0.5, false), -0.25, -0.25 - 0.5 * 3.875);
        // Buffer 2.5 takes w to -0.25; then 0.5 * 2.5 + 3.875 = 5.125.
        check(sgd(0.5, 0.5, false), -0.25, -0.25 - 0.5 * 5.125);
    }

    #[test]
    fn adamw_by_hand() {
        let adamw = |weight_decay| Optimizer::AdamW { betas: [0.5, 0.75], epsilon: 0.0, weight_decay };
        // Step 1: moments 1 and 1, corrected 2 and 4: the direction is 2 / 2.
        // Step 2: moments 0.5 + 2 = 2.5 and 0.75 + 4 = 4.75, corrected by 0.75 and 0.4375.
        let second = 0.5 * (2.5 / 0.75) / (4.75f64 / 0.4375).sqrt();
        check(adamw(0.0), 0.5, 0.5 - second);
        // Decay multiplies w by 1 - 0.5 * 0.5 first.
        check(adamw(0.5), 0.25, 0.25 * 0.75 - second);
    }

    #[test]
    fn adamw_epsilon_is_outside_the_root() {
        let optimizer = Optimizer::AdamW { betas: [0.5, 0.75], epsilon: 2.0, weight_decay: 0.0 };
        // 1 - 0.5 * 2 / (2 + 2).
        check(optimizer, 0.75, 0.75 - 0.5 * (2.5 / 0.75) / ((4.75f64 / 0.4375).sqrt() + 2.0));
    }
}
