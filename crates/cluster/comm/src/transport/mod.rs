//! Carries a group's operations. All transports run the same sums in the same tree; they differ in how bytes travel.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::awake::Awake;
use crate::buffers::BufferBytes;
use crate::cause::{Cause, CauseKind};
use crate::element::Element;
use crate::failure::Failure;
use crate::group_path::GroupPath;
use crate::memory::RegisteredMemory;
use crate::operation::{Header, Identity, Operation};
use crate::options::GroupOptions;
use crate::sync::IS_MODEL;
use crate::traffic::Traffic;

use region::Region;

pub(crate) mod frames;
pub(crate) mod hierarchical;
pub(crate) mod queue;
pub(crate) mod region;
pub(crate) mod shared;
mod slot;

/// Up to this many bytes every rank, or every node, adds up everything itself, which needs one exchange instead of two.
pub(crate) const DIRECT_BYTES: usize = if IS_MODEL { 64 } else { 8 << 10 };
/// How long a rank that waits for another one of its node looks at its word again and again before it sleeps. What it waits for
/// takes less in most cases than to sleep and to be woken.
const SPIN: Duration = if IS_MODEL { Duration::ZERO } else { Duration::from_micros(30) };
/// How long a rank sleeps before it checks whether the group has failed.
const SLEEP: Duration = Duration::from_millis(20);
/// Longest time between two looks at the clock of a rank that waits; it sleeps for a fiftieth of that.
const MAX_ROUND: Duration = Duration::from_secs(1);

/// Carries out operations, one at a time, in the group's order.
pub(crate) trait Transport: Send {
    /// Carries out one operation, to which every rank of the group contributes. Waits as long as the turn permits, and
    /// does not touch the operation's memory after it has returned.
    fn execute(&mut self, running: &RunningOperation) -> Result<(), Stop>;

    /// The memory that all ranks share, if any.
    fn region(&self) -> Option<Arc<Region>>;

    /// The memory through which data pass in this process, once all of it is in use.
    fn buffer_bytes(&self) -> BufferBytes;

    /// What this rank has exchanged with others so far.
    fn traffic(&self) -> Traffic;

    /// Takes a share of memory for the time of each operation that works on it, and for ever if the operation fails while
    /// something may still be written there. No operation is under way.
    fn register_memory(&mut self, _: RegisteredMemory) {}

    /// Tells the other ranks that this one leaves, and takes part in no further operation. A transport that must not leave
    /// before the others waits for them until the group fails, or for as long as `timeouts`.
    fn close(&mut self, failure: &Failure, timeout: Duration);
}

/// Reasons why an operation was not carried out.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The group had failed already.
    Failed,
    /// The group fails now, with this cause.
    Raise(Box<Cause>),
}

/// One operation being carried out.
pub(crate) struct RunningOperation<'a> {
    pub operation: &'a Operation,
    pub failure: &'a Failure,
    options: GroupOptions,
    /// When the wait began, moved forward by the time in which this rank was stopped itself.
    began: Cell<Instant>,
    awake: Cell<Awake>,
    has_warned: Cell<bool>,
    /// Whether all ranks have joined, with equal headers.
    agreed: Cell<bool>,
}

impl<'a> RunningOperation<'a> {
    pub(crate) fn new(operation: &'a Operation, failure: &'a Failure, options: GroupOptions) -> Self {
        let has_warned = Cell::new(false);
        let agreed = Cell::new(false);
        let now = Instant::now();
        let began = Cell::new(now);
        let awake = Cell::new(Awake::new(MAX_ROUND, now));
        RunningOperation { operation, failure, options, began, awake, has_warned, agreed }
    }

    /// Called now and then by a waiting rank; `late` returns the ranks that it waits for.
    pub(crate) fn go_on_waiting(&self, members: &Members, late: impl FnOnce() -> Vec<usize>) -> Result<(), Stop> {
        if self.failure.is_stopping() {
            return Err(Stop::Failed);
        }
        let waited = self.waited(Instant::now());
        if waited >= self.options.timeout {
            return Err(members.late(&late(), self, waited).map_or(Stop::Failed, Stop::Raise));
        }
        if waited >= self.options.stall_warning && !self.has_warned.replace(true) {
            let late = late();
            // Of all waiting ranks, the lowest one reports.
            if (0..members.world_size()).find(|rank| !late.contains(rank)) == Some(members.rank)
                && let Some(stall) = members.late(&late, self, waited)
            {
                self.failure.warn(*stall);
            }
        }
        Ok(())
    }

    /// How long this rank has waited, without the time in which it was stopped.
    fn waited(&self, now: Instant) -> Duration {
        let mut awake = self.awake.get();
        self.began.set((self.began.get() + awake.missed(now)).min(now));
        self.awake.set(awake);
        now.saturating_duration_since(self.began.get())
    }
}

/// The members of the group, from one rank's point of view.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    pub rank: usize,
    /// The number of each rank in the whole job, which messages use.
    pub job_ranks: Vec<usize>,
    pub identity: Identity,
    pub path: GroupPath,
}

impl Members {
    /// The members of a whole job.
    pub(crate) fn of_job(rank: usize, world_size: usize, identity: Identity) -> Self {
        Members { rank, job_ranks: (0..world_size).collect(), identity, path: GroupPath::default() }
    }

    pub(crate) fn world_size(&self) -> usize {
        self.job_ranks.len()
    }

    /// A cause that blames `rank` during `operation`.
    pub(crate) fn blame(&self, rank: usize, kind: CauseKind, operation: &Operation, message: String) -> Stop {
        let cause = Cause::new(kind, message).of_rank(self.job_ranks[rank]);
        Stop::Raise(Box::new(cause.during(operation.describe(), operation.sequence)))
    }

    /// The cause if `rank` left cleanly although this rank still needs it.
    pub(crate) fn left(&self, rank: usize, operation: &Operation) -> Stop {
        let message = format!("it left the group, and rank {} still waits for it", self.job_ranks[self.rank]);
        self.blame(rank, CauseKind::Exited, operation, message)
    }

    /// The cause if the ranks `late` keep the others waiting. The first of them is blamed.
    fn late(&self, late: &[usize], running: &RunningOperation, waited: Duration) -> Option<Box<Cause>> {
        // Before agreement the culprit is mostly a rank's own code; afterwards it is its machine or the network.
        let what = match (running.agreed.get(), late) {
            (false, _) => "had not joined the operation",
            (true, [_]) => "had joined the operation, but not done its part",
            (true, _) => "had joined the operation, but not done their part",
        };
        let cause = self.blame_late(late, what, waited)?;
        Some(Box::new(cause.during(running.operation.describe(), running.operation.sequence)))
    }

    /// The same outside an operation of the group's own.
    pub(crate) fn blame_late(&self, late: &[usize], what: &str, waited: Duration) -> Option<Cause> {
        let (&first, others) = late.split_first()?;
        let who = match others {
            [] => "it".to_owned(),
            ranks => {
                let ranks: Vec<_> = ranks.iter().map(|&rank| self.job_ranks[rank].to_string()).collect();
                format!("it and rank{} {}", if ranks.len() == 1 { "" } else { "s" }, ranks.join(" "))
            }
        };
        let message = format!("{who} {what} after {:.0} s", waited.as_secs_f64());
        Some(Cause::new(CauseKind::Timeout, message).of_rank(self.job_ranks[first]))
    }

    /// Compares the headers of all ranks. Every rank finds the same pair: rank 0 and the first rank that differs.
    pub(crate) fn compare(&self, running: &RunningOperation, header: impl Fn(usize) -> Header) -> Result<(), Stop> {
        self.compare_some(running, 0..self.world_size(), header)?;
        running.agreed.set(true);
        Ok(())
    }

    /// Compares the headers of some ranks, with that of the first of them.
    pub(crate) fn compare_some(
        &self,
        running: &RunningOperation,
        mut ranks: impl Iterator<Item = usize>,
        header: impl Fn(usize) -> Header,
    ) -> Result<(), Stop> {
        let Some((rank, first)) = ranks.next().map(|rank| (rank, header(rank))) else { return Ok(()) };
        let Some(other) = ranks.find(|&other| header(other) != first) else { return Ok(()) };
        let message = format!(
            "rank {} runs {} while rank {} runs {}: all ranks must run the same operations in the same order",
            self.job_ranks[rank],
            first.describe_against(&header(other)),
            self.job_ranks[other],
            header(other).describe_against(&first),
        );
        Err(self.blame(other, CauseKind::Desync, running.operation, message))
    }
}

/// # Safety
/// Both ranges are valid and do not overlap.
unsafe fn copy<T: Element>(from: *const T, to: *mut T, count: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe { std::ptr::copy_nonoverlapping(from, to, count) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_ranks_are_named_with_their_omission() {
        let members = Members::of_job(0, 4, Identity::default());
        let (operation, failure) = (Operation::barrier(), Failure::default());
        let options = GroupOptions::default();
        let check = |late: &[usize], agreed: bool, expected: &str| {
            let running = RunningOperation::new(&operation, &failure, options);
            if agreed {
                members.compare(&running, |_| operation.header(members.identity)).unwrap();
            }
            let cause = members.late(late, &running, Duration::from_secs(30)).unwrap();
            assert_eq!((cause.rank, cause.message.as_str()), (late.first().copied(), expected));
        };
        check(&[2], false, "it had not joined the operation after 30 s");
        check(&[1, 3], false, "it and rank 3 had not joined the operation after 30 s");
        check(&[1, 2, 3], true, "it and ranks 2 3 had joined the operation, but not done their part after 30 s");
        check(&[3], true, "it had joined the operation, but not done its part after 30 s");
    }

    #[test]
    fn time_in_which_a_rank_was_stopped_is_no_wait() {
        let (operation, failure) = (Operation::barrier(), Failure::default());
        let running = RunningOperation::new(&operation, &failure, GroupOptions::default());
        let began = running.began.get();
        // Looks, and how long the rank has waited by then, in milliseconds.
        for (look, waited) in [(500, 500), (1500, 1500), (61_500, 1500), (62_000, 2000), (63_001, 2000), (63_020, 2019)]
        {
            let found = running.waited(began + Duration::from_millis(look));
            assert_eq!(found, Duration::from_millis(waited), "at {look} ms");
        }
    }
}
