//! The handle through which a callback steers the run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::run_event::is_of_epoch_record;
use crate::stop::Request;
use crate::{Artifact, StopRequests};

/// Steers a run from a callback.
pub struct Control<'c> {
    pub(super) steering: &'c mut Steering,
}

/// What callbacks ask for, and what they log.
#[derive(Debug, Default)]
pub(crate) struct Steering {
    pub requests: StopRequests,
    finish: bool,
    checkpoint: bool,
    logged: BTreeMap<String, Mean>,
    /// Values of steps that the loggers do not have yet.
    pub steps: Vec<(u64, String, f64)>,
    /// Files that the loggers do not know yet.
    pub artifacts: Vec<(Artifact, PathBuf)>,
}

/// A value cannot be logged.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("\"{name}\" cannot be logged: every epoch's record already has a value with this name")]
pub struct LogError {
    /// Its name.
    pub name: String,
}

/// The mean of the values logged under a name.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    count: u64,
}

impl<'c> Control<'c> {
    pub(crate) fn new(steering: &'c mut Steering) -> Self {
        Control { steering }
    }

    /// Ends training as a success ([`crate::Trainer::fit`] returns its record). If called in
    /// [`crate::Callback::on_train_batch_end`], training ends at the same step on all ranks, at most two steps later, and saves a
    /// checkpoint there. If called in validation or later, it ends after the epoch, as with Lightning's
    /// `trainer.should_stop`.
    pub fn stop(&mut self) {
        self.steering.finish = true;
    }

    /// Requests a checkpoint to resume from. If called in [`crate::Callback::on_train_batch_end`], all ranks save it after
    /// the same step, at most three steps later. Otherwise the checkpoint that ends every epoch fulfils the request.
    pub fn checkpoint(&mut self) {
        self.steering.checkpoint = true;
    }

    /// Adds a value to the record of the current epoch, on this rank. Values with the same name are averaged over the
    /// epoch. The files of the run hold rank 0's records: if ranks have different values, sum them over the ranks first
    /// ([`enmasse_comm::Group::reduce`]). A resumed epoch averages the values logged since it was resumed.
    pub fn log(&mut self, name: impl Into<String>, value: f64) -> Result<(), LogError> {
        let name = name.into();
        if is_of_epoch_record(&name) {
            return Err(LogError { name });
        }
        let mean = self.steering.logged.entry(name).or_default();
        mean.sum += value;
        mean.count += 1;
        Ok(())
    }

    /// Gives the loggers a value of a step of the run, which is counted from 1. Only rank 0 has loggers. TensorBoard shows it; the lines
    /// of `metrics.jsonl` are epochs.
    pub fn log_step(&mut self, step: u64, name: impl Into<String>, value: f64) {
        self.steering.steps.push((step, name.into(), value));
    }

    /// Tells the loggers of a file that has been written.
    pub fn artifact(&mut self, kind: Artifact, path: &Path) {
        self.steering.artifacts.push((kind, path.to_owned()));
    }
}

impl Steering {
    /// This rank's request to end training.
    pub(crate) fn request(&self) -> Option<Request> {
        self.requests.asked().map(Request::Stop).or(self.finish.then_some(Request::Finish))
    }

    /// Whether a checkpoint was requested since the last call.
    pub(crate) fn take_checkpoint(&mut self) -> bool {
        std::mem::take(&mut self.checkpoint)
    }

    /// The means of the values logged in this epoch.
    pub(crate) fn logged(&self) -> impl Iterator<Item = (String, f64)> {
        self.logged.iter().map(|(name, mean)| (name.clone(), mean.sum / mean.count as f64))
    }

    /// Discards the logged values and any request for a checkpoint: the epoch has ended, and is saved.
    pub(crate) fn end_epoch(&mut self) {
        self.logged.clear();
        self.checkpoint = false;
    }

    /// Discards everything except the sources of requests to stop.
    pub(crate) fn end_fit(&mut self) {
        *self = Steering { requests: self.requests.clone(), ..Steering::default() };
    }
}
