//! Optimisers of a program's own, a block of elements at a time, widened to f64.

use enmasse_graph::optimizers::{Custom, UpdateStep};

use super::{OptimizerOnCpu, PreparedUpdate, Step};
use crate::region::Region;
use crate::workspace::{Context, Workspace};

/// Elements that a rule updates at a time.
const BLOCK: usize = 1024;

impl OptimizerOnCpu for Custom {
    /// Weights, gradients and state of a block.
    fn workspace(&self, update: &PreparedUpdate) -> Workspace {
        Workspace { shared: 0, private: 2 * BLOCK * (2 + update.state.len()) }
    }

    unsafe fn run(&self, update: &PreparedUpdate, context: &mut Context, step: &Step) {
        let private = &context.private;
        context.pool.run(update.pieces.len(), |task, thread| {
            let piece = &update.pieces[task];
            let group = update.ranges[piece.range].group;
            let end = piece.start + piece.len;
            let values = UpdateStep {
                learning_rate: step.rate(group),
                weight_decay: group.weight_decay.into(),
                number: step.number,
            };
            for start in (piece.start..end).step_by(BLOCK) {
                let len = BLOCK.min(end - start);
                let wide = private[thread].cast::<f64>();
                let block = |tensor: usize| wide.part(tensor * BLOCK, len);
                // SAFETY: the caller's promise; pieces do not overlap, and each thread has its own workspace.
                unsafe {
                    widen(update.weights, start, 1.0, block(0));
                    widen(update.gradients, start, step.clip.into(), block(1));
                    for (slot, &state) in update.state.iter().enumerate() {
                        widen(state, start, 1.0, block(2 + slot));
                    }
                    // A step allocates nothing.
                    let mut state: [&mut [f64]; Custom::MAX_STATE] = Default::default();
                    for (slot, state) in state.iter_mut().enumerate().take(update.state.len()) {
                        *state = block(2 + slot).slice_mut(0, len);
                    }
                    let (weights, gradients) = (block(0).slice_mut(0, len), block(1).slice(0, len));
                    self.update(&values, weights, gradients, &mut state[..update.state.len()]);
                    narrow(block(0), update.weights, start);
                    for (slot, &state) in update.state.iter().enumerate() {
                        narrow(block(2 + slot), state, start);
                    }
                }
            }
        });
    }
}

/// The values from `start`, times a factor.
///
/// # Safety
/// The memory is valid, and no other code writes it.
unsafe fn widen(from: Region<f32>, start: usize, factor: f64, to: Region<f64>) {
    // SAFETY: the caller's promise.
    let (from, to) = unsafe { (from.slice(start, to.len()), to.slice_mut(0, to.len())) };
    to.iter_mut().zip(from).for_each(|(to, &from)| *to = factor * f64::from(from));
}

/// Stores values from `start` on.
///
/// # Safety
/// The memory is valid, and no other code touches it.
unsafe fn narrow(from: Region<f64>, to: Region<f32>, start: usize) {
    // SAFETY: the caller's promise.
    let (from, to) = unsafe { (from.slice(0, from.len()), to.slice_mut(start, from.len())) };
    to.iter_mut().zip(from).for_each(|(to, &from)| *to = from as f32);
}
