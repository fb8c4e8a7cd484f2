//! SGD and AdamW by PyTorch's formulas, over all ranges of an update at once, with the same bits at every level.

use enmasse_graph::{Optimizer, Update, UpdateRange};

use crate::isa::Simd;
use crate::region::Region;
use crate::scratch::Context;
use crate::sweep::{self, Pass, Piece};

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

/// A rule with the state that it keeps.
#[derive(Clone, Copy, Debug)]
enum Rule {
    Descent,
    Momentum { buffer: Region<f32>, momentum: f32, nesterov: bool },
    AdamW { first: Region<f32>, second: Region<f32>, betas: [f32; 2], epsilon: f32 },
}

impl Rule {
    /// `None` where the state is not the optimiser's.
    fn new(optimizer: Optimizer, state: &[Region<f32>]) -> Option<Self> {
        match (optimizer, state) {
            (Optimizer::Sgd { momentum: 0.0, .. }, []) => Some(Rule::Descent),
            (Optimizer::Sgd { momentum, nesterov }, &[buffer]) if momentum != 0.0 => {
                Some(Rule::Momentum { buffer, momentum, nesterov })
            }
            (Optimizer::AdamW { betas, epsilon }, &[first, second]) => {
                Some(Rule::AdamW { first, second, betas, epsilon })
            }
            (Optimizer::Sgd { .. } | Optimizer::AdamW { .. }, _) => None,
        }
    }
}

/// An update whose ranges are cut into tasks.
#[derive(Clone, Debug)]
pub(crate) struct PreparedUpdate {
    weights: Region<f32>,
    gradients: Region<f32>,
    rule: Rule,
    ranges: Vec<UpdateRange>,
    pieces: Vec<Piece>,
}

impl PreparedUpdate {
    /// The update of regions that the ranges index; `state` has one for each of [`Optimizer::state_names`]. `None` where it
    /// has more or fewer.
    pub(crate) fn new(
        update: &Update,
        weights: Region<f32>,
        gradients: Region<f32>,
        state: &[Region<f32>],
    ) -> Option<Self> {
        let rule = Rule::new(update.optimizer, state)?;
        let pieces = Piece::cut(update.ranges.iter().map(|range| range.start..range.end()));
        Some(PreparedUpdate { weights, gradients, rule, ranges: update.ranges.clone(), pieces })
    }

    /// Updates every range. `step` counts from 1.
    ///
    /// # Safety
    /// Regions are valid, and longer than every range; all but the gradients are written.
    pub(crate) unsafe fn run(&self, context: &mut Context, learning_rate: f32, step: u64) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.rule {
                Rule::Descent => self.descend::<false, false>(context, learning_rate, self.gradients, 0.0),
                Rule::Momentum { buffer, momentum, nesterov: false } => {
                    self.descend::<true, false>(context, learning_rate, buffer, momentum);
                }
                Rule::Momentum { buffer, momentum, nesterov: true } => {
                    self.descend::<true, true>(context, learning_rate, buffer, momentum);
                }
                Rule::AdamW { first, second, betas, epsilon } => {
                    let correction = betas.map(|beta| 1.0 - f64::from(beta).powf(step as f64));
                    self.sweep(context, |range| {
                        let rate = scaled(learning_rate, range);
                        AdamW {
                            weights: self.weights,
                            gradients: self.gradients,
                            first,
                            second,
                            betas,
                            epsilon,
                            keep: (1.0 - rate * f64::from(range.group.weight_decay)) as f32,
                            step_size: (rate / correction[0]) as f32,
                            root_correction: (1.0 / correction[1].sqrt()) as f32,
                        }
                    });
                }
            }
        }
    }

    /// # Safety
    /// As [`PreparedUpdate::run`]; without momentum `buffer` is not touched.
    unsafe fn descend<const MOMENTUM: bool, const NESTEROV: bool>(
        &self,
        context: &mut Context,
        learning_rate: f32,
        buffer: Region<f32>,
        momentum: f32,
    ) {
        let pass = |range: &UpdateRange| Sgd::<MOMENTUM, NESTEROV> {
            weights: self.weights,
            gradients: self.gradients,
            buffer,
            learning_rate: scaled(learning_rate, range) as f32,
            momentum,
            weight_decay: range.group.weight_decay,
        };
        // SAFETY: the caller's promise.
        unsafe { self.sweep(context, pass) }
    }

    /// # Safety
    /// As [`PreparedUpdate::run`].
    unsafe fn sweep<P: Pass>(&self, context: &mut Context, pass: impl Fn(&UpdateRange) -> P + Sync) {
        // SAFETY: the caller's promise; ranges do not overlap.
        unsafe { sweep::pieces(context, &self.pieces, |piece| pass(&self.ranges[piece.range])) }
    }
}

/// The learning rate of a range.
fn scaled(learning_rate: f32, range: &UpdateRange) -> f64 {
    f64::from(learning_rate) * f64::from(range.group.learning_rate_scale)
}

#[cfg(test)]
#[path = "optimizer_tests.rs"]
mod tests;
