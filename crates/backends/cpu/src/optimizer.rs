//! SGD, AdamW and LARS by their formulas, over all ranges of an update at once, with the same bits at every level.

use enmasse_graph::{Optimizer, Update, UpdateRange};

use crate::inlined::inlined;
use crate::isa::Simd;
use crate::norm::{SQUARES, squares};
use crate::region::Region;
use crate::sweep::{self, Pass, Piece};
use crate::workspace::{Context, Workspace};

/// `a * b + c`, rounded twice at every level so that all levels give the same bits. Memory bandwidth limits the speed
/// here.
#[inline(always)]
unsafe fn multiply_add<S: Simd>(a: S::V, b: S::V, c: S::V) -> S::V {
    // SAFETY: the caller's promise.
    unsafe { S::add(S::mul(a, b), c) }
}

struct Sgd<const MOMENTUM: bool, const NESTEROV: bool> {
    weights: Region<f32>,
    gradients: Region<f32>,
    /// Factor of the gradients.
    clip: f32,
    buffer: Region<f32>,
    /// Factor of the values added to the buffer.
    trust: f32,
    learning_rate: f32,
    momentum: f32,
    weight_decay: f32,
}

impl<const MOMENTUM: bool, const NESTEROV: bool> Pass for Sgd<MOMENTUM, NESTEROV> {
    const BF16: bool = false;

    inlined! {
        unsafe fn at<S: Simd>(&self, index: usize, _: usize) {
            let n = S::LANES;
            let w = S::load(self.weights.at(index, n));
            let g = S::mul(S::splat(self.clip), S::load(self.gradients.at(index, n)));
            let mut step = S::mul(S::splat(self.trust), multiply_add::<S>(S::splat(self.weight_decay), w, g));
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

impl Pass for AdamW {
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

/// The limit to which gradients are clipped, and their norm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clip {
    pub limit: f32,
    pub norm: Region<f32>,
}

impl Clip {
    /// The factor of the gradients; NaN if the norm is NaN, as in PyTorch.
    ///
    /// # Safety
    /// The norm is valid.
    unsafe fn factor(&self) -> f32 {
        // SAFETY: the caller's promise.
        let factor = self.limit / (unsafe { *self.norm.at(0, 1) } + 1e-6);
        if factor > 1.0 { 1.0 } else { factor }
    }
}

/// An update whose ranges are divided into tasks.
#[derive(Clone, Debug)]
pub(crate) struct PreparedUpdate {
    weights: Region<f32>,
    gradients: Region<f32>,
    optimizer: Optimizer,
    /// One region for each of [`Optimizer::state_names`].
    state: Vec<Region<f32>>,
    clip: Option<Clip>,
    ranges: Vec<UpdateRange>,
    pieces: Vec<Piece>,
}

impl PreparedUpdate {
    /// The update of regions that the ranges index. `state` has one region for each of [`Optimizer::state_names`];
    /// `None` if the number differs.
    pub(crate) fn new(
        update: &Update,
        weights: Region<f32>,
        gradients: Region<f32>,
        state: &[Region<f32>],
        clip: Option<Clip>,
    ) -> Option<Self> {
        if state.len() != update.optimizer.state_names().len() {
            return None;
        }
        let (optimizer, state, ranges) = (update.optimizer, state.to_vec(), update.ranges.clone());
        let pieces = Piece::cut(ranges.iter().map(|range| range.start..range.end()));
        Some(PreparedUpdate { weights, gradients, optimizer, state, clip, ranges, pieces })
    }

    /// Workspace for LARS: the squares of weights and gradients of every piece, in f64, and the trust of every range.
    pub(crate) fn workspace(&self) -> Workspace {
        match self.optimizer {
            Optimizer::Lars { .. } => {
                SQUARES.max(Workspace { shared: 4 * self.pieces.len() + self.ranges.len(), private: 0 })
            }
            Optimizer::Sgd { .. } | Optimizer::AdamW { .. } => Workspace::default(),
        }
    }

    /// Updates every range. `step` counts from 1.
    ///
    /// # Safety
    /// Regions are valid and contain every range; all of them except the gradients are written. The context has
    /// [`PreparedUpdate::workspace`].
    pub(crate) unsafe fn run(&self, context: &mut Context, learning_rate: f32, step: u64) {
        // SAFETY: the caller's promise.
        unsafe {
            let clip = self.clip.map_or(1.0, |clip| clip.factor());
            match self.optimizer {
                Optimizer::Sgd { momentum, nesterov: true } if momentum != 0.0 => {
                    self.descend::<true, true>(context, learning_rate, clip, momentum, None);
                }
                Optimizer::Sgd { momentum, .. } if momentum != 0.0 => {
                    self.descend::<true, false>(context, learning_rate, clip, momentum, None);
                }
                Optimizer::Sgd { .. } => self.descend::<false, false>(context, learning_rate, clip, 0.0, None),
                Optimizer::Lars { momentum, trust_coefficient, epsilon } => {
                    let trust = Some(self.trust(context, clip, trust_coefficient, epsilon));
                    match momentum {
                        0.0 => self.descend::<false, false>(context, learning_rate, clip, 0.0, trust),
                        _ => self.descend::<true, false>(context, learning_rate, clip, momentum, trust),
                    }
                }
                Optimizer::AdamW { betas, epsilon } => {
                    let correction = betas.map(|beta| 1.0 - f64::from(beta).powf(step as f64));
                    self.sweep(context, |range| {
                        let group = self.ranges[range].group;
                        let rate = f64::from(learning_rate) * f64::from(group.learning_rate_scale);
                        AdamW {
                            weights: self.weights,
                            gradients: self.gradients,
                            clip,
                            first: self.state[0],
                            second: self.state[1],
                            betas,
                            epsilon,
                            keep: (1.0 - rate * f64::from(group.weight_decay)) as f32,
                            step_size: (rate / correction[0]) as f32,
                            root_correction: (1.0 / correction[1].sqrt()) as f32,
                        }
                    });
                }
            }
        }
    }

    /// SGD; each range has its `trust`, or else 1.
    ///
    /// # Safety
    /// As for [`PreparedUpdate::run`].
    unsafe fn descend<const MOMENTUM: bool, const NESTEROV: bool>(
        &self,
        context: &mut Context,
        learning_rate: f32,
        clip: f32,
        momentum: f32,
        trust: Option<Region<f32>>,
    ) {
        let pass = |range: usize| {
            let group = self.ranges[range].group;
            Sgd::<MOMENTUM, NESTEROV> {
                weights: self.weights,
                gradients: self.gradients,
                clip,
                // Not touched without momentum.
                buffer: *self.state.first().unwrap_or(&self.gradients),
                // SAFETY: each range has its trust, which is not written any more.
                trust: trust.map_or(1.0, |trust| unsafe { *trust.at(range, 1) }),
                learning_rate: (f64::from(learning_rate) * f64::from(group.learning_rate_scale)) as f32,
                momentum,
                weight_decay: group.weight_decay,
            }
        };
        // SAFETY: the caller's promise.
        unsafe { self.sweep(context, pass) }
    }

    /// LARS's factor for each range, in workspace.
    ///
    /// # Safety
    /// As for [`PreparedUpdate::run`].
    unsafe fn trust(&self, context: &mut Context, clip: f32, coefficient: f32, epsilon: f32) -> Region<f32> {
        let (isa, private) = (context.isa, &context.private);
        let sums = context.shared.part(0, 4 * self.pieces.len()).cast::<f64>();
        let trust = context.shared.part(4 * self.pieces.len(), self.ranges.len());
        context.pool.run(self.pieces.len(), |task, thread| {
            let piece = &self.pieces[task];
            if self.ranges[piece.range].adaptive {
                // SAFETY: the caller's promise; each task has its own sums, and each thread its own workspace.
                unsafe {
                    *sums.at(2 * task, 1) = squares(isa, self.weights, piece, private[thread]);
                    *sums.at(2 * task + 1, 1) = squares(isa, self.gradients, piece, private[thread]);
                }
            }
        });
        for (number, range) in self.ranges.iter().enumerate() {
            let mut squares = [0.0; 2];
            // Pieces are in the order of the ranges.
            let first = self.pieces.partition_point(|piece| piece.range < number);
            for task in first..self.pieces.partition_point(|piece| piece.range <= number) {
                // SAFETY: the tasks above wrote these values.
                let piece = if range.adaptive { unsafe { sums.slice(2 * task, 2) } } else { &[0.0; 2] };
                squares.iter_mut().zip(piece).for_each(|(sum, square)| *sum += square);
            }
            let [w, g] = [squares[0].sqrt(), squares[1].sqrt() * f64::from(clip)];
            let factor = match w > 0.0 && g > 0.0 {
                true => f64::from(coefficient) * w / (g + f64::from(range.group.weight_decay) * w + f64::from(epsilon)),
                false => 1.0,
            };
            // SAFETY: the workspace is this instruction's.
            unsafe { *trust.at(number, 1) = factor as f32 };
        }
        trust
    }

    /// Runs over every piece the pass of its range.
    ///
    /// # Safety
    /// As for [`PreparedUpdate::run`].
    unsafe fn sweep<P: Pass>(&self, context: &mut Context, pass: impl Fn(usize) -> P + Sync) {
        // SAFETY: the caller's promise; ranges do not overlap.
        unsafe { sweep::pieces(context, &self.pieces, |piece| pass(piece.range)) }
    }
}

#[cfg(test)]
#[path = "optimizer_tests.rs"]
mod tests;
