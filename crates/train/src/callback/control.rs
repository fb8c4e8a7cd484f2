//! The handle through which a callback steers the run.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::run_log::EPOCH_RECORD_NAMES;
use crate::{Stop, StopRequests};

/// Steers a run from a callback.
#[derive(Debug, Default)]
pub struct Control {
    requests: StopRequests,
    finish: bool,
    checkpoint: bool,
    logged: BTreeMap<String, Mean>,
}

/// A request to end training early. The greater one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Request {
    /// A callback has seen enough: the run succeeds.
    Finish,
    /// The run stops, to be resumed.
    Stop(Stop),
}

/// A value cannot be logged.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("\"{name}\" cannot be logged: every epoch's record has a value of that name already")]
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

impl Control {
    /// Ends training as a success ([`crate::Trainer::fit`] returns its record). From [`crate::Callback::on_step`] training ends at
    /// the same step on all ranks, two steps later at most, and saves a checkpoint there. From validation on, it ends after the
    /// epoch, as Lightning's `trainer.should_stop` does.
    pub fn stop(&mut self) {
        self.finish = true;
    }

    /// Asks for a checkpoint to resume from. From [`crate::Callback::on_step`] of training, all ranks save it after the same step,
    /// three steps later at most. Otherwise the checkpoint that ends every epoch is the answer.
    pub fn checkpoint(&mut self) {
        self.checkpoint = true;
    }

    /// Adds a value to the record of the epoch under way, on this rank. Values of one name are averaged over the epoch. The
    /// files of the run hold rank 0's records: sum over ranks first where ranks differ ([`enmasse_comm::Group::reduce`]). A
    /// resumed epoch averages the values logged since it was resumed.
    pub fn log(&mut self, name: impl Into<String>, value: f64) -> Result<(), LogError> {
        let name = name.into();
        if EPOCH_RECORD_NAMES.contains(&name.as_str()) {
            return Err(LogError { name });
        }
        let mean = self.logged.entry(name).or_default();
        mean.sum += value;
        mean.count += 1;
        Ok(())
    }

    pub(crate) fn requests(&self) -> &StopRequests {
        &self.requests
    }

    pub(crate) fn set_requests(&mut self, requests: StopRequests) {
        self.requests = requests;
    }

    /// The request of this rank to end training.
    pub(crate) fn request(&self) -> Option<Request> {
        self.requests.asked().map(Request::Stop).or(self.finish.then_some(Request::Finish))
    }

    /// Whether a checkpoint was asked for since the last call.
    pub(crate) fn take_checkpoint(&mut self) -> bool {
        std::mem::take(&mut self.checkpoint)
    }

    /// The means of the values logged in this epoch.
    pub(crate) fn logged(&self) -> impl Iterator<Item = (String, f64)> {
        self.logged.iter().map(|(name, mean)| (name.clone(), mean.sum / mean.count as f64))
    }

    /// Forgets what was logged, and a checkpoint asked for: the epoch has ended, and is saved.
    pub(crate) fn end_epoch(&mut self) {
        self.logged.clear();
        self.checkpoint = false;
    }

    /// Forgets all but where requests to stop come from.
    pub(crate) fn end_fit(&mut self) {
        *self = Control { requests: self.requests.clone(), ..Control::default() };
    }
}
