//! The events of a run that callbacks are notified of.

use std::path::{Path, PathBuf};

use enmasse_data::BadSample;
use enmasse_datasets::TaskKind;
use enmasse_device::LossScale;
use enmasse_graph::{Recomputed, TensorParallel};
use enmasse_image::Normalization;
use serde::Serialize;

use crate::{Change, ChosenAlgorithm, EpochRecord, RankMemory, Resumed, StepRecord, Tuning};

/// The facts of a run that are known before its first step. The keys of its JSON form, in this order, are a contract with scripts:
/// those of the fields that are not skipped.
#[derive(Clone, Debug, Serialize)]
pub struct Started {
    /// The model's name.
    pub model: String,
    /// Elements of all parameters.
    pub parameters: usize,
    /// Elements that are trained.
    pub trainable: usize,
    /// The kind of images.
    pub data: &'static str,
    /// What is to be predicted.
    #[serde(skip)]
    pub task: TaskKind,
    /// Names of the classes, by label, of the labels, or of the numbers.
    pub classes: Vec<String>,
    /// The constants of normalisation.
    #[serde(skip)]
    pub normalization: Normalization,
    /// Height and width of the images that the model sees.
    pub size: usize,
    /// The transforms of training images.
    #[serde(skip)]
    pub augmentation: String,
    /// Images to train on.
    pub train_samples: usize,
    /// How many of these each epoch leaves out: with `drop_last` those of the last incomplete global batch.
    pub dropped_samples: usize,
    /// Images to validate on.
    pub validation_samples: usize,
    /// The steps of an epoch, and those that it would have without a limit.
    #[serde(skip)]
    pub epoch_steps: [usize; 2],
    /// Those images that a validation evaluates: all of them, without a limit.
    #[serde(skip)]
    pub evaluated_samples: usize,
    /// Images of the test part; 0 without one.
    pub test_samples: usize,
    /// Samples per shard and step.
    pub batch: usize,
    /// Samples per step over all shards.
    pub global_batch: usize,
    /// Number of ranks.
    pub world_size: usize,
    /// Number of shards that the ranks host.
    pub shards: usize,
    /// The device.
    pub device: String,
    /// Decoding threads per rank.
    #[serde(skip)]
    pub loader_threads: usize,
    /// Bytes that this rank's process takes at its peak.
    pub memory_bytes: usize,
    /// Their parts.
    pub memory: RankMemory,
    /// The layers that are cut over ranks.
    #[serde(skip)]
    pub cut: Option<TensorParallel>,
    /// What backward computes again, for less memory; `None` where that was not asked for.
    #[serde(skip)]
    pub recomputed: Option<Recomputed>,
    /// The algorithm of sums over ranks, if the model of costs has chosen it.
    #[serde(skip)]
    pub all_reduce: Option<ChosenAlgorithm>,
    /// How the algorithms of a tuned run were chosen. Only on rank 0.
    #[serde(skip)]
    pub tuning: Option<Tuning>,
    /// A few lines about the weights to start with: which were loaded, skipped, missing or unexpected. Only on rank 0.
    #[serde(skip)]
    pub pretrained: Option<String>,
    /// The run folder; `None` if nothing is kept.
    pub run: Option<PathBuf>,
    /// Where a resumed run continues.
    pub resumed: Option<Resumed>,
    /// Steps that a resumed run has done.
    #[serde(skip)]
    pub optimizer_step: u64,
    /// The samples that a resumed run skipped earlier. Only on rank 0.
    #[serde(skip)]
    pub unreadable: Vec<BadSample>,
    /// The settings that a resumed run changes from now on. Only on rank 0.
    #[serde(skip)]
    pub changes: Vec<Change>,
    /// What the schedule does from here on, if a resumed run has another number of epochs.
    #[serde(skip)]
    pub rescheduled: Option<String>,
    /// Why the best checkpoint of a resumed run cannot be read: the best of the epochs to come replaces it. Only on rank 0.
    #[serde(skip)]
    pub lost_best: Option<String>,
    /// Epochs before those to come whose records in `metrics.jsonl` are missing or malformed. Only on rank 0.
    #[serde(skip)]
    pub lost_records: u64,
    /// What the checkpoint of a resumed run has of compressed gradients' residuals that does not fit. Only on rank 0.
    #[serde(skip)]
    pub lost_residuals: Option<String>,
    /// States of callbacks in the checkpoint of a resumed run that nobody takes: the key of each, and why. Only on rank 0.
    #[serde(skip)]
    pub lost_states: Vec<(String, String)>,
}

impl Started {
    /// The first epoch, from 0, that this fit trains, or trains to its end.
    pub fn first_epoch(&self) -> u64 {
        self.resumed.map_or(0, |resumed| resumed.epoch)
    }
}

/// The progress of an epoch of training, or of its validation, after a step.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The epoch, from 0.
    pub epoch: u64,
    /// Number of epochs.
    pub epochs: u64,
    /// Whether this is validation.
    pub validating: bool,
    /// Optimiser steps since the run began.
    pub optimizer_step: u64,
    /// Mean loss over the samples of this step.
    pub step_loss: f64,
    /// The learning rate of this step; 0 in validation.
    pub learning_rate: f64,
    /// Samples done, over all ranks.
    pub samples: u64,
    /// Total number of samples.
    pub total: u64,
    /// Mean loss over the samples done.
    pub loss: f64,
    /// Images per second over all ranks, since the epoch or its validation began.
    pub images_per_second: f64,
    /// What became of a training step whose loss is scaled.
    pub loss_scale: Option<LossScale>,
}

impl From<&Progress> for StepRecord {
    fn from(progress: &Progress) -> Self {
        StepRecord {
            epoch: progress.epoch,
            step: progress.optimizer_step,
            samples: progress.samples,
            loss: progress.step_loss,
            learning_rate: progress.learning_rate,
            images_per_second: progress.images_per_second,
        }
    }
}

/// A checkpoint to resume from that all ranks have reached. Rank 0 has written it.
#[derive(Clone, Copy, Debug)]
pub struct Saved<'a> {
    /// The file, on rank 0.
    pub path: Option<&'a Path>,
    /// Why it was written.
    pub reason: SaveReason<'a>,
    /// The epoch, from 0, in which a run resumed from it continues.
    pub epoch: u64,
    /// Samples of that epoch that are done, over all ranks.
    pub samples: u64,
}

/// The reason for a checkpoint.
#[derive(Clone, Copy, Debug)]
pub enum SaveReason<'a> {
    /// An epoch ended, with this record.
    EpochEnd(&'a EpochRecord),
    /// `save_every` steps were done, a callback requested it, or callbacks have set weights in [`crate::Callback::on_fit_end`].
    Step,
    /// The run stops in the middle of an epoch.
    Stop,
}

/// What became of the state after the last finished step, on a rank that is left after another one has died.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Survival {
    /// This rank has written it as the checkpoint to resume from.
    Saved {
        /// The step.
        step: u64,
    },
    /// It is not saved, at least not by this rank.
    Unsaved {
        /// The step.
        step: u64,
        /// Why.
        reason: String,
    },
}
