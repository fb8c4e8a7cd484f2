//! The optimisers, over all ranges of an update at once, in files of the same names as graph's.

mod adamw;
mod custom;
mod lars;
mod sgd;

use enmasse_graph::{Optimizer, ParameterGroup, Update, UpdateRange, with_optimizer};

use crate::isa::Simd;
use crate::region::Region;
use crate::sweep::{self, Pass, Piece};
use crate::workspace::{Context, Workspace};

/// An optimiser as the CPU runs it, with the same bits at every level. Every optimiser is one, or the crate does not compile.
trait OptimizerOnCpu {
    /// What it needs beside its operands.
    fn workspace(&self, _update: &PreparedUpdate) -> Workspace {
        Workspace::default()
    }

    /// Updates every range.
    ///
    /// # Safety
    /// As for [`PreparedUpdate::run`].
    unsafe fn run(&self, update: &PreparedUpdate, context: &mut Context, step: &Step);
}

/// What differs from step to step.
struct Step {
    learning_rate: f32,
    /// Factor of the gradients.
    clip: f32,
    /// Number of the update, from 1.
    number: u64,
}

impl Step {
    /// The learning rate of a group.
    fn rate(&self, group: ParameterGroup) -> f64 {
        f64::from(self.learning_rate) * f64::from(group.learning_rate_scale)
    }
}

/// `a * b + c`, rounded twice at every level so that all levels give the same bits. Memory bandwidth limits the speed
/// here.
#[inline(always)]
unsafe fn multiply_add<S: Simd>(a: S::V, b: S::V, c: S::V) -> S::V {
    // SAFETY: the caller's promise.
    unsafe { S::add(S::mul(a, b), c) }
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
        let optimizer = update.optimizer.clone();
        let state = state.to_vec();
        let ranges = update.ranges.clone();
        let pieces = Piece::cut(ranges.iter().map(|range| range.start..range.end()));
        Some(PreparedUpdate { weights, gradients, optimizer, state, clip, ranges, pieces })
    }

    /// What [`PreparedUpdate::run`] needs.
    pub(crate) fn workspace(&self) -> Workspace {
        with_optimizer!(&self.optimizer, own => own.workspace(self))
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
            let step = Step { learning_rate, clip, number: step };
            with_optimizer!(&self.optimizer, own => own.run(self, context, &step));
        }
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
mod tests;
