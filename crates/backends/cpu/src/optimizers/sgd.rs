//! Stochastic gradient descent.

use enmasse_graph::optimizers::Sgd;

use super::{OptimizerOnCpu, PreparedUpdate, Step, multiply_add};
use crate::inlined::inlined;
use crate::isa::Simd;
use crate::region::Region;
use crate::sweep::Pass;
use crate::workspace::Context;

struct Descent<const MOMENTUM: bool, const NESTEROV: bool> {
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

impl<const MOMENTUM: bool, const NESTEROV: bool> Pass for Descent<MOMENTUM, NESTEROV> {
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

impl OptimizerOnCpu for Sgd {
    unsafe fn run(&self, update: &PreparedUpdate, context: &mut Context, step: &Step) {
        // SAFETY: the caller's promise.
        unsafe { descend(self, update, context, step, None) }
    }
}

/// SGD; each range has its `trust`, or else 1.
///
/// # Safety
/// As for [`PreparedUpdate::run`].
pub(super) unsafe fn descend(
    sgd: &Sgd,
    update: &PreparedUpdate,
    context: &mut Context,
    step: &Step,
    trust: Option<Region<f32>>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match *sgd {
            Sgd { momentum: 0.0, .. } => sweep::<false, false>(sgd, update, context, step, trust),
            Sgd { nesterov: false, .. } => sweep::<true, false>(sgd, update, context, step, trust),
            Sgd { nesterov: true, .. } => sweep::<true, true>(sgd, update, context, step, trust),
        }
    }
}

/// # Safety
/// As for [`PreparedUpdate::run`].
unsafe fn sweep<const MOMENTUM: bool, const NESTEROV: bool>(
    sgd: &Sgd,
    update: &PreparedUpdate,
    context: &mut Context,
    step: &Step,
    trust: Option<Region<f32>>,
) {
    let pass = |range: usize| {
        let group = update.ranges[range].group;
        Descent::<MOMENTUM, NESTEROV> {
            weights: update.weights,
            gradients: update.gradients,
            clip: step.clip,
            // Not touched without momentum.
            buffer: *update.state.first().unwrap_or(&update.gradients),
            // SAFETY: each range has its trust, which is not written any more.
            trust: trust.map_or(1.0, |trust| unsafe { *trust.at(range, 1) }),
            learning_rate: step.rate(group) as f32,
            momentum: sgd.momentum,
            weight_decay: group.weight_decay,
        }
    };
    // SAFETY: the caller's promise.
    unsafe { update.sweep(context, pass) }
}
