//! The handle through which a callback steers the run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use enmasse_device::Program;
use thiserror::Error;

use super::Weights;
use crate::run_event::is_of_epoch_record;
use crate::stop::Request;
use crate::{Artifact, LogPoint, Media, StopRequests, TrainError};

/// Steers a run from a callback.
pub struct Control<'c> {
    pub(super) steering: &'c mut Steering,
    /// The model, where the device has ended its steps.
    program: Option<&'c mut dyn Program>,
}

/// What callbacks ask for, and what they log.
#[derive(Debug, Default)]
pub(crate) struct Steering {
    pub requests: StopRequests,
    finish: bool,
    /// Why training ends early, as a callback has put it.
    pub reason: Option<String>,
    checkpoint: bool,
    logged: BTreeMap<String, Mean>,
    /// Values of steps that the loggers do not have yet.
    pub steps: Vec<(u64, String, f64)>,
    /// What else the loggers do not have yet.
    pub media: Vec<(LogPoint, String, Media)>,
    /// Files that the loggers do not know yet.
    pub artifacts: Vec<(Artifact, PathBuf)>,
    /// The tensors that were set since ranks last compared them.
    pub written: Vec<(String, u64)>,
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
    pub(crate) fn new(steering: &'c mut Steering, program: Option<&'c mut dyn Program>) -> Self {
        Control { steering, program }
    }

    /// Ends training as a success ([`crate::Trainer::fit`] returns its record). If called in
    /// [`crate::Callback::on_train_batch_end`], training ends at the same step on all ranks, at most two steps later, and saves a
    /// checkpoint there. If called in validation or later, it ends after the epoch, as with Lightning's
    /// `trainer.should_stop`. If called in [`crate::Callback::on_fit_start`], no step is trained.
    pub fn stop(&mut self) {
        self.steering.finish = true;
    }

    /// Ends training as [`Control::stop`] does, and says why, such as "two epochs in a row have
    /// reached 90 %".
    pub fn stop_because(&mut self, reason: impl Into<String>) {
        self.stop();
        self.steering.reason = Some(reason.into());
    }

    /// Why training ends before its last epoch, as a callback of this rank has put it.
    pub fn reason(&self) -> Option<&str> {
        self.steering.reason.as_deref()
    }

    /// The tensors of the model. The device has ended its steps in [`crate::Callback::on_validation_end`],
    /// [`crate::Callback::on_train_epoch_end`] and [`crate::Callback::on_fit_end`].
    ///
    /// # Errors
    /// It is called anywhere else, where a step may be in progress.
    pub fn weights(&mut self) -> Result<Weights<'_>, TrainError> {
        match self.program.as_deref_mut() {
            Some(program) => Ok(Weights::new(program, &mut self.steering.written)),
            None => Err(TrainError::Weights(
                "a step may be in progress: weights are for on_validation_end, on_train_epoch_end and on_fit_end"
                    .into(),
            )),
        }
    }

    /// Requests a checkpoint to resume from. If called in [`crate::Callback::on_train_batch_end`], all ranks save it after
    /// the same step, at most three steps later. Otherwise the checkpoint that ends every epoch fulfils the request.
    pub fn checkpoint(&mut self) {
        self.steering.checkpoint = true;
    }

    /// Adds a value to the record of the current epoch, on this rank. Values with the same name are averaged over the
    /// epoch. The files of the run hold rank 0's records: if ranks have different values, sum them over the ranks first
    /// ([`enmasse_comm::Group::reduce`]). A resumed epoch averages the values logged since it was resumed.
    ///
    /// # Errors
    /// Every epoch's record already has a value with this name. Nothing is logged then.
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

    /// Gives the loggers an image or a histogram, of a step or of an epoch. TensorBoard shows it.
    pub fn log_media(&mut self, at: LogPoint, name: impl Into<String>, media: Media) {
        self.steering.media.push((at, name.into(), media));
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
