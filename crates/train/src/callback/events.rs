//! The events of a run that callbacks are told of.

use std::path::{Path, PathBuf};

use enmasse_data::Normalization;
use enmasse_device::Memory;

use crate::{EpochRecord, Tuning};

/// The facts of a run that are known before its first step.
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
    /// Samples done, over all ranks.
    pub samples: u64,
    /// Samples in all.
    pub total: u64,
    /// Mean loss over the samples done.
    pub loss: f64,
    /// Over all ranks, since the epoch or its validation began.
    pub images_per_second: f64,
}

/// A checkpoint to resume from that all ranks have reached. Rank 0 has written it.
#[derive(Clone, Copy, Debug)]
pub struct Saved<'a> {
    /// The file, on rank 0.
    pub path: Option<&'a Path>,
    /// Why it was written.
    pub reason: SaveReason<'a>,
    /// The epoch that a run resumed from it goes on with, from 0.
    pub epoch: u64,
    /// Samples of that epoch that are done, over all ranks.
    pub samples: u64,
}

/// The reason for a checkpoint.
#[derive(Clone, Copy, Debug)]
pub enum SaveReason<'a> {
    /// An epoch ended, with this record.
    EpochEnd(&'a EpochRecord),
    /// `save_every` steps were done, or a callback asked for it.
    Step,
    /// The run stops in the middle of an epoch.
    Stop,
}
