//! SGD and AdamW by PyTorch's formulas, over the whole trainable range at once, with the same bits at every level.

use enmasse_graph::Optimizer;

use crate::isa::Simd;
use crate::region::Region;
use crate::scratch::Context;
use crate::sweep::{self, Pass};

/// `a * b + c` rounded twice at every level, so that all give the same bits; memory is what takes the time here.
#[inline(always)]
unsafe fn multiply_add<S: Simd>(a: S::V, b: S::V, c: S::V) -> S::V {
    // SAFETY: the caller's promise.
    unsafe { S::add(S::mul(a, b), c) }
}

struct Sgd<const MOMENTUM: bool, const NESTEROV: bool> {
    weights: Region<f32>,
    gradients: Region<f32>,
    buffer: Region<f32>,
    learning_rate: f32,
    momentum: f32,
    weight_decay: f32,
}

impl<const MOMENTUM: bool, const NESTEROV: bool> Pass for Sgd<MOMENTUM, NESTEROV> {
    #[inline(always)]
    unsafe fn at<S: Simd>(&self, index: usize, _: usize) {
        let n = S::LANES;
        // SAFETY: the caller's promise.
        unsafe {
            let w = S::load(self.weights.at(index, n));
            let mut step = multiply_add::<S>(S::splat(self.weight_decay), w, S::load(self.gradients.at(index, n)));
            if MOMENTUM {
                let momentum = S::splat(self.momentum);
                let buffer = multiply_add::<S>(momentum, S::load(self.buffer.at(index, n)), step);
                S::store(self.buffer.at(index, n), buffer);
                step = if NESTEROV { multiply_add::<S>(momentum, buffer, step) } else { buffer };
            }
            S::store(self.weights.at(index, n), S::sub(w, S::mul(S::splat(self.learning_rate), step)));
        }
    }
}

struct AdamW {
    weights: Region<f32>,
    gradients: Region<f32>,
    first: Region<f32>,
    second: Region<f32>,
    betas: [f32; 2],
    epsilon: f32,
    /// `1 - learning rate * weight decay`.
    keep: f32,
    /// `learning rate / (1 - beta1 ^ step)`.
    step_size: f32,
    /// `1 / sqrt(1 - beta2 ^ step)`.
    root_correction: f32,
}

impl Pass for AdamW {
    #[inline(always)]
    unsafe fn at<S: Simd>(&self, index: usize, _: usize) {
        let n = S::LANES;
        // SAFETY: the caller's promise.
        unsafe {
            let [beta1, beta2] = self.betas;
            let g = S::load(self.gradients.at(index, n));
            let first = S::load(self.first.at(index, n));
            // m + (1 - beta1) * (g - m), as PyTorch's `lerp_`.
            let first = multiply_add::<S>(S::splat(1.0 - beta1), S::sub(g, first), first);
            let second = S::mul(S::splat(beta2), S::load(self.second.at(index, n)));
            let second = multiply_add::<S>(S::mul(S::splat(1.0 - beta2), g), g, second);
            S::store(self.first.at(index, n), first);
            S::store(self.second.at(index, n), second);
            let root = S::mul(S::sqrt(second), S::splat(self.root_correction));
            let step = S::div(S::mul(S::splat(self.step_size), first), S::add(root, S::splat(self.epsilon)));
            let w = S::mul(S::load(self.weights.at(index, n)), S::splat(self.keep));
            S::store(self.weights.at(index, n), S::sub(w, step));
        }
    }
}

/// The trainable range of each arena; `state` has one region per name of [`Optimizer::state_names`].
#[derive(Clone, Debug)]
pub(crate) struct Operands {
    pub weights: Region<f32>,
    pub gradients: Region<f32>,
    pub state: Vec<Region<f32>>,
}

/// Updates all parameters. `step` counts from 1.
///
/// # Safety
/// Regions are valid and as long as each other; all but the gradients are written.
pub(crate) unsafe fn update(context: &mut Context, optimizer: &Optimizer, o: &Operands, learning_rate: f32, step: u64) {
    let (weights, gradients, len) = (o.weights, o.gradients, o.weights.len());
    match (*optimizer, &o.state[..]) {
        (Optimizer::AdamW { betas, epsilon, weight_decay }, &[first, second]) => {
            let correction = betas.map(|beta| 1.0 - f64::from(beta).powf(step as f64));
            let pass = AdamW {
                weights,
                gradients,
                first,
                second,
                betas,
                epsilon,
                keep: (1.0 - f64::from(learning_rate) * f64::from(weight_decay)) as f32,
                step_size: (f64::from(learning_rate) / correction[0]) as f32,
                root_correction: (1.0 / correction[1].sqrt()) as f32,
            };
            // SAFETY: the caller's promise.
            unsafe { sweep::flat(context, len, &pass) }
        }
        (Optimizer::AdamW { .. }, _) => {}
        (Optimizer::Sgd { momentum, weight_decay, nesterov }, state) => {
            let buffer = state.first().copied().unwrap_or(gradients);
            macro_rules! run {
                ($momentum:literal, $nesterov:literal) => {{
                    let pass = Sgd::<$momentum, $nesterov> {
                        weights,
                        gradients,
                        buffer,
                        learning_rate,
                        momentum,
                        weight_decay,
                    };
                    // SAFETY: the caller's promise.
                    unsafe { sweep::flat(context, len, &pass) }
                }};
            }
            match (state.is_empty(), nesterov) {
                (true, _) => run!(false, false),
                (false, false) => run!(true, false),
                (false, true) => run!(true, true),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::{Edge, Guarded};
    use crate::scratch::Scratch;
    use crate::test_support::{assert_near, available, noise};

    /// The formulas in f64.
    fn plain(optimizer: &Optimizer, lr: f64, step: i32, w: &mut [f64], g: &[f64], state: &mut [Vec<f64>]) {
        for (i, w) in w.iter_mut().enumerate() {
            match *optimizer {
                Optimizer::Sgd { momentum, weight_decay, nesterov } => {
                    let g = g[i] + f64::from(weight_decay) * *w;
                    let step = match state.first_mut() {
                        None => g,
                        Some(m) => {
                            m[i] = f64::from(momentum) * m[i] + g;
                            if nesterov { g + f64::from(momentum) * m[i] } else { m[i] }
                        }
                    };
                    *w -= lr * step;
                }
                Optimizer::AdamW { betas: [b1, b2], epsilon, weight_decay } => {
                    let (b1, b2) = (f64::from(b1), f64::from(b2));
                    *w *= 1.0 - lr * f64::from(weight_decay);
                    state[0][i] = b1 * state[0][i] + (1.0 - b1) * g[i];
                    state[1][i] = b2 * state[1][i] + (1.0 - b2) * g[i] * g[i];
                    let root = (state[1][i] / (1.0 - b2.powi(step))).sqrt();
                    *w -= lr * state[0][i] / (1.0 - b1.powi(step)) / (root + f64::from(epsilon));
                }
            }
        }
    }

    #[test]
    fn three_steps_equal_the_formulas() {
        let sgd = |momentum, weight_decay, nesterov| Optimizer::Sgd { momentum, weight_decay, nesterov };
        let adamw = Optimizer::AdamW { betas: [0.9, 0.999], epsilon: 1e-8, weight_decay: 0.01 };
        for optimizer in [sgd(0.0, 0.0, false), sgd(0.9, 5e-4, false), sgd(0.9, 0.0, true), adamw] {
            for isa in available() {
                let n = 16_421;
                let edge = Edge::Last;
                let mut w = Guarded::new(edge, &noise(1, n));
                let mut state: Vec<_> =
                    optimizer.state_names().iter().map(|_| Guarded::filled(edge, 0f32, n)).collect();
                let mut w64: Vec<f64> = w.iter().map(|&v| f64::from(v)).collect();
                let mut state64 = vec![vec![0.0; n]; state.len()];
                let context = &mut Context::new(2, isa, Scratch::default()).unwrap();
                for step in 1..=3 {
                    let g = Guarded::new(edge, &noise(step, n));
                    let g64: Vec<f64> = g.iter().map(|&v| f64::from(v)).collect();
                    plain(&optimizer, 0.1, step as i32, &mut w64, &g64, &mut state64);
                    let operands = Operands {
                        weights: Region::of_mut(&mut w),
                        gradients: Region::of(&g),
                        state: state.iter_mut().map(|s| Region::of_mut(s)).collect(),
                    };
                    // SAFETY: live buffers of one length.
                    unsafe { update(context, &optimizer, &operands, 0.1, step) };
                }
                assert_near(&format!("{optimizer:?} {isa}"), &w, &w64, 2e-6);
                for (found, expected) in state.iter().zip(&state64) {
                    assert_near(&format!("{optimizer:?} state"), found, expected, 1e-6);
                }
            }
        }
    }
}
