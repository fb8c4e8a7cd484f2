//! Operations of other libraries, such as NCCL or MPI, with the same deadline, records and causes as the group's own.

use std::sync::Arc;

use crate::cause::{Cause, CauseKind};
use crate::failure::Failure;
use crate::flight::FlightRecorder;
use crate::group::{Core, Group};
use crate::watchdog::Watchdog;

/// An operation in progress in another library, from [`Group::watch`]. Dropping it ends the watch. Without
/// [`Watch::done`] the flight recorder keeps the operation as one that did not end.
#[must_use = "the operation is watched until this is dropped"]
pub struct Watch {
    failure: Arc<Failure>,
    recorder: FlightRecorder,
    watchdog: Arc<Watchdog>,
    /// Its number in the recorder.
    flight: u64,
    /// Its number in the watchdog.
    entry: u64,
}

impl Group {
    /// Watches an operation that another library carries out for all ranks of this group, from now until
    /// [`Watch::done`].
    ///
    /// The operation gets a number among the group's watched operations, and an entry in the flight record. If it lasts
    /// longer than [`crate::GroupOptions::stall_warning`], observers are told; beyond [`crate::GroupOptions::timeout`]
    /// the group fails. The cause names the operation and the rank that has not joined it. Where ranks share no memory, that
    /// rank is known once its activity ([`FlightRecorder::at`]) has lasted longer than a heartbeat. Ranks watch operations in
    /// the same order; `name` is the library's own name for the operation.
    ///
    /// The caller keeps waiting for its library. Meanwhile it calls [`Watch::check`], or registers an observer
    /// ([`Group::observe`]) that aborts the library from the thread that learns of the failure.
    ///
    /// # Errors
    /// The group's [`Cause`], if it has failed.
    ///
    /// ```
    /// use enmasse_comm::Group;
    /// # let mut polls = 0;
    /// # let mut library_is_done = || { polls += 1; polls > 3 };
    /// let group = Group::single();
    /// let watch = group.watch("ncclAllReduce", 4096)?;
    /// while !library_is_done() {
    ///     watch.check()?;
    /// }
    /// watch.done()?;
    /// let operation = &group.flight_recorder().record().operations[0];
    /// assert_eq!((operation.operation.as_str(), operation.sequence), ("ncclAllReduce of 4096 bytes", 1));
    /// # Ok::<(), std::sync::Arc<enmasse_comm::Cause>>(())
    /// ```
    pub fn watch(&self, name: &'static str, bytes: usize) -> Result<Watch, Arc<Cause>> {
        self.check()?;
        let Core { members, group_shared, group_state, .. } = &*self.core;
        let (operation, flight) = group_state.recorder.watched(members.path, name, bytes);
        group_shared.joined(&operation);
        let entry = group_state.watchdog.enter(operation, group_shared.clone()).map_err(|error| {
            let message = format!("cannot start the thread that watches it: {error}; is a limit reached (ulimit -u)?");
            self.fail(self.own_cause(CauseKind::Error, message).during(operation.describe(), operation.sequence))
        })?;
        let failure = group_state.failure.clone();
        let recorder = group_state.recorder.clone();
        let watchdog = group_state.watchdog.clone();
        Ok(Watch { failure, recorder, watchdog, flight, entry })
    }
}

impl Watch {
    /// An error once the group has failed for any reason, which makes waiting for the library pointless. Until then it
    /// costs one atomic load.
    ///
    /// # Errors
    /// The group's [`Cause`], if it has failed.
    #[inline]
    pub fn check(&self) -> Result<(), Arc<Cause>> {
        self.failure.check()
    }

    /// Records that the operation has succeeded on this rank; an error if the group has failed in the meantime.
    ///
    /// # Errors
    /// The group's [`Cause`], if it has failed.
    pub fn done(self) -> Result<(), Arc<Cause>> {
        self.check()?;
        self.recorder.ended(self.flight);
        Ok(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.watchdog.leave(self.entry);
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("operation", &self.flight).finish_non_exhaustive()
    }
}
