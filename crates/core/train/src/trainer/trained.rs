//! What a fit leaves: a program that holds the run's last weights, or those of its best checkpoint.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use enmasse_comm::Group;
use enmasse_device::Program;
use enmasse_graph::{Arena, StateTensor};
use enmasse_weights::Matching;

use super::Trainer;
use super::evaluate::EvaluationInput;
use crate::agreement::broadcast_state;
use crate::checkpoint::CheckpointFile;
use crate::state::StateTensors;
use crate::weights::{is_optimizer, read_chosen, write_tensors};
use crate::{
    CheckpointError, EvaluatedWeights, NamedTensor, Preprocessing, Resumed, RunPaths, TrainError, WeightsFormat,
    load_pretrained,
};

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
    /// Updates that the last weights have seen.
    pub updates: u64,
    /// How images are prepared for them, on rank 0.
    pub preprocessing: Option<Preprocessing>,
}

impl Trainer<'_> {
    /// The weights that [`Trainer::fit`] ended with, by PyTorch's names, shapes and layout: parameters and running statistics, or their
    /// averages if the run kept any. Every rank has them, and all must call it.
    ///
    /// # Errors
    /// [`TrainError::NotFitted`] before a fit. Or the last checkpoint is needed and cannot be read, or the device or
    /// the group fails.
    pub fn weights(&mut self) -> Result<Vec<NamedTensor>, TrainError> {
        self.as_one(|trainer| {
            let Trained { program, .. } = trainer.hold(HeldWeights::Last)?;
            program.gather_state(true)?;
            let is_weight = |tensor: &StateTensor| tensor.slot.arena != Arena::Teacher && !is_optimizer(&tensor.name);
            let tensors = read_chosen(program.as_mut(), &is_weight)?;
            Ok(EvaluatedWeights::of(tensors).weights)
        })
    }

    /// Writes these weights as `enmasse export` does, by the extension as `.pth`, with the preparation of images as JSON beside it, or
    /// `.safetensors`. All ranks must call it; rank 0 writes.
    ///
    /// # Errors
    /// Those of [`weights`](Self::weights). Or the path has another extension, the file beside it would replace one
    /// that is not such a file, or a file cannot be written.
    pub fn save(&mut self, path: impl AsRef<Path>) -> Result<(), TrainError> {
        self.as_one(|trainer| {
            let path = path.as_ref();
            let Trained { program, updates, preprocessing, .. } = trainer.hold(HeldWeights::Last)?;
            program.gather_state(false)?;
            let Some(preprocessing) = preprocessing else { return Ok(()) };
            let problem = |reason: String| TrainError::Weights(format!("{reason}; choose another path"));
            let format = WeightsFormat::of(path).ok_or_else(|| {
                problem(format!("{}: weights are written as .pth or as .safetensors", path.display()))
            })?;
            let beside = Preprocessing::place(path, format).map_err(problem)?;
            let written = format.write(path, &StateTensors::evaluated(program.as_mut()), *updates as i64);
            written
                .and_then(|()| beside.map_or(Ok(()), |file| preprocessing.write(&file)))
                .map_err(CheckpointError::from)?;
            Ok(())
        })
    }

    /// Replaces the weights that [`Trainer::fit`] left by those of a file, as the setting `weights` does before it. From then on they are
    /// evaluated, by [`Trainer::test`] too, and saved. All ranks must call it; rank 0 reads the file and knows what was loaded.
    ///
    /// # Errors
    /// [`TrainError::NotFitted`] before a fit. Or the file cannot be read, its tensors are not those of the model, or
    /// the device or the group fails.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<Option<Matching>, TrainError> {
        self.as_one(|trainer| {
            let Trainer { config, group, trained, .. } = trainer;
            let trained = trained.as_mut().ok_or(TrainError::NotFitted)?;
            let group = group.as_ref();
            trained.program.gather_state(false)?;
            let is_main = group.is_none_or(Group::is_main);
            let load = || load_pretrained(trained.program.as_mut(), path.as_ref(), &config.prefix);
            let matching = is_main.then(load).transpose()?;
            if let Some(group) = group {
                broadcast_state(group, trained.program.as_mut())?;
            }
            // They are no longer those of the run.
            (trained.run, trained.has_best, trained.best, trained.updates) = (None, false, None, 0);
            Ok(matching)
        })
    }

    /// Makes the program hold these weights of the run.
    pub(super) fn hold(&mut self, weights: HeldWeights) -> Result<&mut Trained, TrainError> {
        let trained = self.trained.as_mut().ok_or(TrainError::NotFitted)?;
        trained.hold(weights, self.group.as_ref())?;
        Ok(trained)
    }
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
        // A file of weights leaves the optimiser's state as it is.
        self.program.gather_state(false)?;
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
