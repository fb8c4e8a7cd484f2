//! What a fit leaves: a program that holds the run's last weights, or those of its best checkpoint.

use std::borrow::Cow;
use std::path::PathBuf;

use enmasse_comm::Group;
use enmasse_device::Program;

use super::evaluate::EvaluationInput;
use crate::agreement::broadcast_state;
use crate::checkpoint::CheckpointFile;
use crate::weights::write_tensors;
use crate::{Resumed, RunPaths, TrainError};

/// Weights of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeldWeights {
    /// Those that the fit ended with.
    Last,
    /// Those of the best checkpoint; the last ones if there is none.
    Best,
}

/// A program with its weights, and how images reach it.
pub(super) struct Trained {
    pub program: Box<dyn Program>,
    pub evaluation: EvaluationInput,
    /// The run folder, on rank 0.
    pub run: Option<PathBuf>,
    /// Where the run ended, and would go on.
    pub ended: Resumed,
    /// Whether a whole epoch has ended, so that there is a best checkpoint.
    pub has_best: bool,
    /// The epoch of the best checkpoint, while the program holds its weights.
    pub best: Option<u64>,
}

impl Trained {
    /// Makes the program hold these weights. All ranks must call it; rank 0 reads the file.
    pub fn hold(&mut self, weights: HeldWeights, group: Option<&Group>) -> Result<(), TrainError> {
        let is_held = match weights {
            HeldWeights::Last => self.best.is_none(),
            HeldWeights::Best => self.best.is_some() || !self.has_best,
        };
        if is_held {
            return Ok(());
        }
        let file = self.run.as_deref().map(RunPaths::new).and_then(|run| match weights {
            HeldWeights::Last => Some(run.last_checkpoint()),
            HeldWeights::Best => Some(run.best_checkpoint()).filter(|path| path.exists()),
        });
        let origin = file.as_deref().map(|path| path.display().to_string()).unwrap_or_default();
        let checkpoint = file.map(|path| CheckpointFile::open(&path)).transpose()?;
        let epoch = checkpoint.as_ref().map_or(-1, |checkpoint| checkpoint.meta.epoch as i64);
        let mut told = [epoch];
        if let Some(group) = group {
            group.broadcast(&mut told, 0)?;
        }
        if told[0] < 0 {
            return Ok(());
        }
        if let Some(checkpoint) = checkpoint {
            let listed: Vec<_> =
                checkpoint.entries().iter().map(|entry| (entry.name.as_str(), &entry.shape[..])).collect();
            let read = |index: usize| Ok(Cow::Owned(checkpoint.read(index)?));
            write_tensors(self.program.as_mut(), &listed, &read, &origin)?;
        }
        if let Some(group) = group {
            broadcast_state(group, self.program.as_mut())?;
        }
        // A checkpoint at the end of an epoch says where the next one begins.
        self.best = (weights == HeldWeights::Best).then(|| told[0].saturating_sub(1) as u64);
        Ok(())
    }
}
