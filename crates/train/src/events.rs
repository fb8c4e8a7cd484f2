//! What the trainer tells those who watch: the terminal, the logs, a user's own callbacks.

use std::path::PathBuf;

use enmasse_data::Normalization;
use enmasse_device::Memory;

use crate::{EpochRecord, Tuning};

/// Known before the first step.
#[derive(Clone, Debug)]
pub struct Started {
    /// The model's name.
    pub model: String,
    /// Elements of all parameters.
    pub parameters: usize,
    /// Elements that are trained.
    pub trainable: usize,
    /// What the pictures are.
    pub data: &'static str,
    /// What they are normalised by.
    pub normalization: Normalization,
    /// Height and width of what the model sees.
    pub size: usize,
    /// What is done to training pictures.
    pub augmentation: String,
    /// Names of the classes, by label.
    pub classes: Vec<String>,
    /// Pictures to train on.
    pub train_samples: usize,
    /// Of these, how many each epoch leaves out, as the last incomplete global batch.
    pub dropped_samples: usize,
    /// Pictures to validate on.
    pub validation_samples: usize,
    /// Samples per shard and step.
    pub batch: usize,
    /// Samples per step over all shards.
    pub global_batch: usize,
    /// Number of ranks.
    pub world_size: usize,
    /// Number of shards that they host.
    pub shards: usize,
    /// What computes.
    pub device: String,
    /// Threads that decode, per rank.
    pub loader_threads: usize,
    /// What the program of this rank holds.
    pub memory: Memory,
    /// How the algorithms of a tuned run were chosen. On rank 0.
    pub tuning: Option<Tuning>,
    /// What was loaded from the weights to begin with, skipped, missing, unexpected: a few lines. On rank 0.
    pub pretrained: Option<String>,
    /// The run folder; none where nothing is kept.
    pub run: Option<PathBuf>,
    /// Where a resumed run goes on: the epoch, and the samples of it that are done.
    pub resumed: Option<(u64, u64)>,
}

/// How far an epoch has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The epoch, from 0.
    pub epoch: u64,
    /// Number of epochs.
    pub epochs: u64,
    /// Whether this is validation.
    pub validating: bool,
    /// Samples done, over all ranks.
    pub samples: u64,
    /// Samples in all.
    pub total: u64,
    /// Mean loss over the samples done.
    pub loss: f64,
    /// Over all ranks, since the epoch or its validation began.
    pub images_per_second: f64,
}

/// Watches a run. Every method has a default that does nothing; they are called on the trainer's own thread, on every rank.
///
/// ```
/// use enmasse_train::{EpochRecord, Observer};
/// struct Best(f64);
/// impl Observer for Best {
///     fn epoch(&mut self, record: &EpochRecord) {
///         self.0 = self.0.max(record.val_accuracy);
///     }
/// }
/// ```
pub trait Observer: Send {
    /// Before the first step.
    fn started(&mut self, _started: &Started) {}
    /// After each step, in training and in validation.
    fn progress(&mut self, _progress: &Progress) {}
    /// After each epoch's validation.
    fn epoch(&mut self, _record: &EpochRecord) {}
}

/// Watches nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quiet;

impl Observer for Quiet {}
