//! The events of a run as JSON lines. Their keys are a contract with scripts (`docs/json.md`).

use std::collections::BTreeMap;
use std::ops::Not;
use std::path::PathBuf;

use serde::Serialize;

use crate::{BatchSearch, Best, Evaluation, LrSearch, RankFigures, Started, Straggler};

/// Where a resumed run goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Resumed {
    /// The epoch, from 0.
    pub epoch: u64,
    /// Samples of it that are done, over all ranks.
    pub samples: u64,
}

/// A step of training. The keys of its JSON form, in this order, are a contract with scripts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepRecord {
    /// The epoch, from 0.
    pub epoch: u64,
    /// The step of the run, from 1.
    pub step: u64,
    /// Samples of the epoch that are done, over all ranks.
    pub samples: u64,
    /// Mean loss over the samples of the step.
    pub loss: f64,
    /// The learning rate that the step used.
    pub learning_rate: f64,
    /// Over all ranks, since the epoch began.
    pub images_per_second: f64,
}

/// The measurements of an epoch. The keys of its JSON form, in this order, are a contract with scripts.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct EpochRecord {
    /// The epoch, from 0.
    pub epoch: u64,
    /// Mean loss over the samples trained on.
    pub train_loss: f64,
    /// Share of hits among the samples trained on, 0 to 1. `None`, and absent in JSON, where no classes are predicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train_accuracy: Option<f64>,
    /// Mean loss over the validation set; not a number of an epoch that was not validated.
    pub val_loss: f64,
    /// Share of hits in the validation set, 0 to 1. As the one above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val_accuracy: Option<f64>,
    /// The mean of the classes' own accuracies in the validation set, over the classes that have samples there. As the one above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balanced_accuracy: Option<f64>,
    /// The mean of the classes' F1 in the validation set, over the classes that have samples or predictions there. As the one above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val_macro_f1: Option<f64>,
    /// The learning rate that the epoch used.
    pub learning_rate: f64,
    /// Over all ranks, training only.
    pub images_per_second: f64,
    /// Share of the time of training, after its first batch, that the loop waited for batches: 0 to 1, of the rank that waited
    /// longest. A device that computes on its own may have been busy meanwhile. Waiting for other ranks is no part of it.
    pub data_wait: f64,
    /// Share of the time of training, after its first batch, that ranks waited for others in the sums of a step: 0 to 1, the
    /// mean over ranks. It includes the time of the sums themselves, as far as nothing hides it.
    pub rank_wait: f64,
    /// Seconds of the epoch, including validation.
    pub seconds: f64,
    /// Number of ranks.
    pub world_size: usize,
    /// Whether training ended before the epoch did, by `max_steps`. The JSON object of a whole epoch lacks it.
    #[serde(skip_serializing_if = "Not::not")]
    pub partial: bool,
    /// Whether the model was not validated after the epoch, by `val_every`. The JSON object of a validated epoch lacks it.
    #[serde(skip_serializing_if = "Not::not")]
    pub unvalidated: bool,
    /// Different samples that the run has skipped so far because they cannot be read. The JSON object lacks it if it is 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub unreadable: u64,
    /// Images of the epoch and of its validation that were converted to RGB. The JSON object lacks it if it is 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub converted: u64,
    /// The rank that the others waited for. The JSON object lacks it if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub straggler: Option<Straggler>,
    /// What each rank did and took. The JSON object lacks it if it is not known.
    #[serde(skip_serializing_if = "RankFigures::is_empty")]
    pub ranks: RankFigures,
    /// With a scaled loss: the scale at the end of the epoch. The JSON object of another run lacks it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// Steps of the epoch that loss scaling skipped. The JSON object lacks it if it is 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub skipped_steps: u64,
    /// Further values by name: metrics of the plans, and values that callbacks logged.
    #[serde(flatten)]
    pub metrics: BTreeMap<String, f64>,
    /// Whether it is the best whole epoch of the run so far. No part of the JSON object.
    #[serde(skip)]
    pub best: bool,
}

impl EpochRecord {
    /// The measurements by name, as loggers record them and callbacks watch them: those that every epoch has, those of classes and of a
    /// scaled loss where there are any, then the further ones. What is not measured, such as the number of ranks, is not among them.
    pub fn scalars(&self) -> Vec<(&str, f64)> {
        let named = [
            ("learning_rate", Some(self.learning_rate)),
            ("images_per_second", Some(self.images_per_second)),
            ("seconds", Some(self.seconds)),
            ("data_wait", Some(self.data_wait)),
            ("rank_wait", Some(self.rank_wait)),
            ("train_loss", Some(self.train_loss)),
            ("train_accuracy", self.train_accuracy),
            ("val_loss", (!self.unvalidated).then_some(self.val_loss)),
            ("val_accuracy", self.val_accuracy),
            ("balanced_accuracy", self.balanced_accuracy),
            ("val_macro_f1", self.val_macro_f1),
            ("loss_scale", self.loss_scale),
            ("skipped_steps", self.loss_scale.map(|_| self.skipped_steps as f64)),
        ];
        let further = self.metrics.iter().map(|(name, value)| (name.as_str(), *value));
        named.into_iter().filter_map(|(name, value)| Some((name, value?))).chain(further).collect()
    }

    /// The measurement with this name, if the record has it.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.scalars().into_iter().find(|(own, _)| *own == name).map(|(_, value)| value)
    }
}

/// The keys of an epoch's record that are not free for metrics, including that of its event.
const EPOCH_RECORD_NAMES: &str = "event epoch train_loss train_accuracy val_loss val_accuracy balanced_accuracy val_macro_f1 \
    learning_rate images_per_second data_wait rank_wait seconds world_size partial unvalidated unreadable converted straggler \
    ranks loss_scale skipped_steps";

/// Whether an epoch's record has a value of this name on its own.
pub(crate) fn is_of_epoch_record(name: &str) -> bool {
    EPOCH_RECORD_NAMES.split(' ').any(|known| known == name)
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The end of a run. The keys of its JSON form, in this order, are a contract with scripts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DoneRecord {
    /// The value of the best whole epoch, such as the highest validation accuracy.
    #[serde(flatten)]
    pub best: Best,
    /// Seconds since the start.
    pub seconds: f64,
    /// Sum over ranks.
    pub peak_rss_bytes: u64,
    /// The run folder.
    pub run: PathBuf,
    /// Bytes of the files in it, on rank 0.
    pub run_bytes: u64,
}

/// The evaluation of the test part. The keys of its JSON form, in this order, are a contract with scripts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TestRecord {
    /// The epoch, from 0, whose weights were evaluated: that of the best checkpoint. `None` (in JSON `null`) stands for the last
    /// weights of a run that has no best checkpoint.
    pub epoch: Option<u64>,
    /// The results.
    #[serde(flatten)]
    pub evaluation: Evaluation,
}

/// A run that stopped before its end, as requested. The keys of its JSON form, in this order, are a contract with scripts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StoppedRecord {
    /// The current epoch, from 0.
    pub epoch: u64,
    /// Number of its images that are done, over all ranks.
    pub samples: u64,
    /// The run folder.
    pub run: PathBuf,
}

/// A line of `--json`.
///
/// ```
/// use enmasse_train::{Best, DoneRecord, RunEvent};
/// let best = Best { metric: "val_accuracy".into(), value: Some(0.5) };
/// let done = DoneRecord { best, seconds: 2.0, peak_rss_bytes: 9, run: "runs/a".into(), run_bytes: 5 };
/// let line = r#"{"event":"done","best_val_accuracy":0.5,"seconds":2.0,"peak_rss_bytes":9,"run":"runs/a","run_bytes":5}"#;
/// assert_eq!(RunEvent::Done(&done).to_line(), line);
/// ```
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
#[non_exhaustive]
pub enum RunEvent<'a> {
    /// Before the first step.
    Start(&'a Started),
    /// After every N steps, if that is asked for.
    Step(&'a StepRecord),
    /// After each epoch.
    Epoch(&'a EpochRecord),
    /// After training, for data with a test part.
    Test(&'a TestRecord),
    /// The last line.
    Done(&'a DoneRecord),
    /// The last line of a run that stopped before its end.
    Stopped(&'a StoppedRecord),
    /// The only line of a search for a learning rate.
    #[serde(rename = "find_lr")]
    FindLr(&'a LrSearch),
    /// The only line of a search for a batch.
    #[serde(rename = "find_batch")]
    FindBatch(&'a BatchSearch),
}

impl RunEvent<'_> {
    /// The event as one line of JSON, without a line break. Numbers read back as the same bits; numbers that are not
    /// finite are `null`.
    pub fn to_line(&self) -> String {
        // Fails only for a map whose keys are not strings, or for a path that is not UTF-8.
        serde_json::to_string(self)
            .unwrap_or_else(|error| format!("{{\"event\":\"error\",\"message\":{:?}}}", error.to_string()))
    }
}
