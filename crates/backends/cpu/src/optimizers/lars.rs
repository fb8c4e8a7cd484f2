//! SGD with a rate for each parameter, from the norms of its weights and its gradient.

use enmasse_graph::optimizers::{Lars, Sgd};

use super::sgd::descend;
use super::{OptimizerOnCpu, PreparedUpdate, Step};
use crate::norm::{SQUARES, squares};
use crate::region::Region;
use crate::workspace::{Context, Workspace};

impl OptimizerOnCpu for Lars {
    /// The squares of weights and gradients of every piece, in f64, and the trust of every range.
    fn workspace(&self, update: &PreparedUpdate) -> Workspace {
        SQUARES.max(Workspace { shared: 4 * update.pieces.len() + update.ranges.len(), private: 0 })
    }

    unsafe fn run(&self, update: &PreparedUpdate, context: &mut Context, step: &Step) {
        let sgd = Sgd { momentum: self.momentum, nesterov: false };
        // SAFETY: the caller's promise.
        unsafe {
            let trust = trust(self, update, context, step.clip);
            descend(&sgd, update, context, step, Some(trust));
        }
    }
}

/// The factor for each range, in workspace.
///
/// # Safety
/// As for [`PreparedUpdate::run`].
unsafe fn trust(lars: &Lars, update: &PreparedUpdate, context: &mut Context, clip: f32) -> Region<f32> {
    let (isa, private) = (context.isa, &context.private);
    let sums = context.shared.part(0, 4 * update.pieces.len()).cast::<f64>();
    let trust = context.shared.part(4 * update.pieces.len(), update.ranges.len());
    context.pool.run(update.pieces.len(), |task, thread| {
        let piece = &update.pieces[task];
        if update.ranges[piece.range].adaptive {
            // SAFETY: the caller's promise; each task has its own sums, and each thread its own workspace.
            unsafe {
                *sums.at(2 * task, 1) = squares(isa, update.weights, piece, private[thread]);
                *sums.at(2 * task + 1, 1) = squares(isa, update.gradients, piece, private[thread]);
            }
        }
    });
    for (number, range) in update.ranges.iter().enumerate() {
        let mut squares = [0.0; 2];
        // Pieces are in the order of the ranges.
        let first = update.pieces.partition_point(|piece| piece.range < number);
        for task in first..update.pieces.partition_point(|piece| piece.range <= number) {
            // SAFETY: the tasks above wrote these values.
            let piece = if range.adaptive { unsafe { sums.slice(2 * task, 2) } } else { &[0.0; 2] };
            squares.iter_mut().zip(piece).for_each(|(sum, square)| *sum += square);
        }
        let [w, g] = [squares[0].sqrt(), squares[1].sqrt() * f64::from(clip)];
        let factor = match w > 0.0 && g > 0.0 {
            true => {
                let divisor = g + f64::from(range.group.weight_decay) * w + f64::from(lars.epsilon);
                f64::from(lars.trust_coefficient) * w / divisor
            }
            false => 1.0,
        };
        // SAFETY: the workspace is this instruction's.
        unsafe { *trust.at(number, 1) = factor as f32 };
    }
    trust
}
