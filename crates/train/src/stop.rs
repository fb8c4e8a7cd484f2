//! Asking a run to stop where nothing is lost: between two steps, on all ranks at the same one, with a checkpoint written.
//!
//! A request goes to one rank, or to several. Each step carries the request to all ranks in the sum that it makes anyway
//! ([`enmasse_device::StepInputs::stop`]), so that they agree without a message of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use enmasse_comm::Group;

use crate::TrainError;
use crate::callback::Request;

/// What is to become of a run that stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Its job is to be started again, and goes on.
    Requeue = 1,
    /// Nothing: somebody else knows. This outweighs a request to requeue.
    End = 2,
}

/// Through which a run is asked to stop, from any thread. Clones are the same.
///
/// ```
/// use enmasse_train::{Stop, StopRequests};
/// let requests = StopRequests::default();
/// assert!(!requests.clone().ask(Stop::Requeue), "no run looks at it yet");
/// requests.ask(Stop::End);
/// requests.ask(Stop::Requeue);
/// assert_eq!(requests.asked(), Some(Stop::End));
/// ```
#[derive(Clone, Debug, Default)]
pub struct StopRequests(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// The weightiest request, as a number; 0 for none.
    asked: AtomicU8,
    heeded: AtomicBool,
}

impl StopRequests {
    /// Asks for it. True where a run heeds that, or is stopping anyway; false where none has begun its steps, or has done them
    /// all: there is nothing to save.
    pub fn ask(&self, stop: Stop) -> bool {
        self.0.asked.fetch_max(stop as u8, Ordering::SeqCst);
        self.0.heeded.load(Ordering::SeqCst)
    }

    /// What was asked for.
    pub fn asked(&self) -> Option<Stop> {
        match self.0.asked.load(Ordering::SeqCst) {
            0 => None,
            1 => Some(Stop::Requeue),
            _ => Some(Stop::End),
        }
    }

    pub(crate) fn heed(&self, heeded: bool) {
        self.0.heeded.store(heeded, Ordering::SeqCst);
    }
}

/// The greatest request of all ranks. Returns when every rank has called it.
pub(crate) fn agree(own: Option<Request>, group: Option<&Group>) -> Result<Option<Request>, TrainError> {
    const ALL: [Request; 3] = [Request::Finish, Request::Stop(Stop::Requeue), Request::Stop(Stop::End)];
    let mut asked = ALL.map(|request| i64::from(own == Some(request)));
    if let Some(group) = group {
        group.all_reduce(&mut asked)?;
    }
    Ok(ALL.into_iter().zip(asked).filter(|(_, ranks)| *ranks > 0).map(|(request, _)| request).max())
}
