//! Requests to stop a run without losing work: between two steps, on all ranks at the same step,
//! after writing a checkpoint.
//!
//! A request goes to one rank, or to several. Each step carries it to all ranks in a sum that the
//! step computes anyway ([`enmasse_device::StepInputs::stop`]), so that they agree without a
//! separate message. A request of a callback travels like a signal's. In a validation all ranks
//! agree before each batch.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use enmasse_comm::{Cause, Group};

/// What happens to a run after it stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Its job is to be started again, and continues the run.
    Requeue = 1,
    /// Nothing: a person at a terminal has interrupted the run. This outweighs a request to requeue.
    Interrupt = 2,
    /// Nothing by the run itself. This outweighs all other requests.
    End = 3,
}

/// A request to end training early. Of two requests the greater one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Request {
    /// A callback wants to end the run as a success.
    Finish,
    /// The run stops, and can be resumed.
    Stop(Stop),
}

/// A handle for requesting from any thread that a run stop. Clones share their state.
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
pub struct StopRequests(Arc<SharedStop>);

#[derive(Debug, Default)]
struct SharedStop {
    /// The strongest request, as a number; 0 for none.
    asked: AtomicU8,
    heeded: AtomicBool,
}

impl StopRequests {
    /// Requests a stop. Returns true if a run takes notice, or is stopping anyway. Returns false if no run has begun
    /// its steps, or if it has completed all: then there is nothing to save.
    pub fn ask(&self, stop: Stop) -> bool {
        self.0.asked.fetch_max(stop as u8, Ordering::SeqCst);
        self.0.heeded.load(Ordering::SeqCst)
    }

    /// The request, if any.
    pub fn asked(&self) -> Option<Stop> {
        match self.0.asked.load(Ordering::SeqCst) {
            0 => None,
            1 => Some(Stop::Requeue),
            2 => Some(Stop::Interrupt),
            _ => Some(Stop::End),
        }
    }

    pub(crate) fn heed(&self, heeded: bool) {
        self.0.heeded.store(heeded, Ordering::SeqCst);
    }
}

/// The greatest request of all ranks. Returns when every rank has called it.
pub(crate) fn agree(own: Option<Request>, group: Option<&Group>) -> Result<Option<Request>, Arc<Cause>> {
    const ALL: [Request; 4] =
        [Request::Finish, Request::Stop(Stop::Requeue), Request::Stop(Stop::Interrupt), Request::Stop(Stop::End)];
    let mut asked = ALL.map(|request| i64::from(own == Some(request)));
    if let Some(group) = group {
        group.all_reduce(&mut asked)?;
    }
    Ok(ALL.into_iter().zip(asked).filter(|(_, ranks)| *ranks > 0).map(|(request, _)| request).max())
}
