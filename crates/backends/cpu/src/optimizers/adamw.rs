//! Adam with decoupled weight decay.

use enmasse_graph::optimizers::AdamW;

use super::{OptimizerOnCpu, PreparedUpdate, Step, multiply_add};
use crate::inlined::inlined;
use crate::isa::Simd;
use crate::region::Region;
use crate::sweep::Pass;
use crate::workspace::Context;

struct Moments {
    weights: Region<f32>,
    gradients: Region<f32>,
    /// Factor of the gradients.
    clip: f32,
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

impl Pass for Moments {
    const BF16: bool = false;

    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, _: usize) {
            let n = S::LANES;
            let [beta1, beta2] = self.betas;
            let g = S::mul(S::splat(self.clip), S::load(self.gradients.at(index, n)));
            let first = S::load(self.first.at(index, n));
            // m + (1 - beta1) * (g - m), as in PyTorch's `lerp_`.
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

impl OptimizerOnCpu for AdamW {
    unsafe fn run(&self, update: &PreparedUpdate, context: &mut Context, step: &Step) {
        let correction = self.betas.map(|beta| 1.0 - f64::from(beta).powf(step.number as f64));
        let pass = |range: usize| {
            let group = update.ranges[range].group;
            let rate = step.rate(group);
            Moments {
                weights: update.weights,
                gradients: update.gradients,
                clip: step.clip,
                first: update.state[0],
                second: update.state[1],
                betas: self.betas,
                epsilon: self.epsilon,
                keep: (1.0 - rate * f64::from(group.weight_decay)) as f32,
                step_size: (rate / correction[0]) as f32,
                root_correction: (1.0 / correction[1].sqrt()) as f32,
            }
        };
        // SAFETY: the caller's promise.
        unsafe { update.sweep(context, pass) }
    }
}
