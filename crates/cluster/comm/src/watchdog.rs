//! The clock of other libraries' operations: a thread that warns of an operation that lasts long, and ends the group if
//! it does not end.
//!
//! The thread starts with a rank's first such operation. While operations are in progress it looks once a second, so that
//! it notices when this process was stopped. An operation that begins and ends in between wakes no thread and allocates
//! nothing.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::arrivals::{Arrivals, Question};
use crate::awake::Awake;
use crate::cause::{Cause, CauseKind};
use crate::failure::Failure;
use crate::flight::Watched;
use crate::locks::{lock, wait, wait_for};
use crate::options::GroupOptions;
use crate::transport::Members;
use crate::transport::region::Region;

/// Number of operations in progress for which there is room from the start.
const CAPACITY: usize = 64;

/// Longest sleep of the thread while operations are in progress.
const ROUND: Duration = Duration::from_secs(1);

/// State of a group whose watched operations are monitored.
pub(crate) struct GroupShared {
    pub members: Members,
    /// Where ranks see the progress of the others; `None` if they share no memory.
    pub region: Option<Arc<Region>>,
    pub options: GroupOptions,
}

impl GroupShared {
    /// Shows the others that this rank has joined an operation.
    pub(crate) fn joined(&self, operation: &Watched) {
        if let Some(region) = &self.region {
            region.counters(self.members.rank).watched.fetch_max(operation.sequence, Ordering::Release);
        }
    }

    /// The ranks that have not joined an operation, and whether all others have, as far as this rank knows.
    fn late(&self, operation: &Watched, failure: &Failure) -> (Vec<usize>, bool) {
        let Members { rank: own, job_ranks, .. } = &self.members;
        if let Some(region) = &self.region {
            let has_come = |rank: usize| region.counters(rank).watched.load(Ordering::Acquire) >= operation.sequence;
            return ((0..job_ranks.len()).filter(|&rank| rank != *own && !has_come(rank)).collect(), true);
        }
        let question = Question { group: operation.group, sequence: operation.sequence };
        let Arrivals { joined, late } = failure.arrivals(question).unwrap_or_default();
        let late: Vec<_> = late.iter().filter_map(|late| job_ranks.iter().position(|rank| rank == late)).collect();
        let is_all = joined + late.len() + 1 == job_ranks.len();
        (late, is_all)
    }

    /// The reason why the operation has not ended, as far as this rank can see.
    fn cause(&self, operation: &Watched, waited: Duration, failure: &Failure) -> Cause {
        let (late, is_all) = self.late(operation, failure);
        if let Some(cause) = self.members.blame_late(&late, "had not joined the operation", waited) {
            return cause.during(operation.describe(), operation.sequence);
        }
        let rank = self.members.job_ranks[self.members.rank];
        let seconds = waited.as_secs_f64();
        let who = match is_all {
            true => "all ranks have joined it",
            false => "the flight records of all ranks show which one has not joined it",
        };
        let message = format!("the operation had not ended on rank {rank} after {seconds:.0} s; {who}");
        Cause::new(CauseKind::Timeout, message).on_host("").during(operation.describe(), operation.sequence)
    }
}

/// See the module's documentation. Dropping the watchdog ends the thread.
pub(crate) struct Watchdog {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    failure: Arc<Failure>,
}

struct State {
    entries: Vec<Entry>,
    /// Number of entries so far, which is the number of the last one.
    entered: u64,
    /// When the thread checks again; `None` while it waits for an operation.
    looks_at: Option<Instant>,
    closing: bool,
}

#[derive(Clone)]
struct Entry {
    number: u64,
    operation: Watched,
    group_shared: Arc<GroupShared>,
    /// Moved forward by the time in which this process was stopped.
    began: Instant,
    has_warned: bool,
}

/// The action that is due.
enum Due {
    Warning(Entry),
    End(Entry),
}

impl Watchdog {
    pub(crate) fn new(failure: Arc<Failure>) -> Self {
        let entries = Vec::with_capacity(CAPACITY);
        let state = Mutex::new(State { entries, entered: 0, looks_at: None, closing: false });
        Watchdog { shared: Arc::new(Shared { state, changed: Condvar::new(), failure }), thread: Mutex::new(None) }
    }

    /// Watches an operation from now on, until [`Watchdog::leave`] is called with the returned number.
    pub(crate) fn enter(&self, operation: Watched, group_shared: Arc<GroupShared>) -> io::Result<u64> {
        self.start()?;
        let mut state = lock(&self.shared.state);
        state.entered += 1;
        let entry = Entry { number: state.entered, operation, group_shared, began: Instant::now(), has_warned: false };
        let number = entry.number;
        let looks_at = entry.looks_at();
        state.entries.push(entry);
        if looks_at.is_some_and(|at| state.looks_at.is_none_or(|other| at < other)) {
            self.shared.changed.notify_one();
        }
        Ok(number)
    }

    pub(crate) fn leave(&self, number: u64) {
        lock(&self.shared.state).entries.retain(|entry| entry.number != number);
    }

    fn start(&self) -> io::Result<()> {
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            // A thread allocates while it starts; later steps must not see that.
            let started = Arc::new(Barrier::new(2));
            *thread = Some(std::thread::Builder::new().name("enmasse-watch".into()).spawn({
                let shared = self.shared.clone();
                let started = started.clone();
                move || {
                    started.wait();
                    shared.serve();
                }
            })?);
            started.wait();
        }
        Ok(())
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        lock(&self.shared.state).closing = true;
        self.shared.changed.notify_one();
        if let Some(thread) = lock(&self.thread).take() {
            // It ends soon: it waits for this word alone, and what it calls has deadlines of its own.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn serve(&self) {
        let mut state = lock(&self.state);
        let mut awake = Awake::new(2 * ROUND, Instant::now());
        while !state.closing {
            state.skip(&mut awake, Instant::now());
            if let Some(due) = state.take_due() {
                // Writes to the control connection, which may take a heartbeat, and may wait for an answer from there.
                drop(state);
                match due {
                    Due::Warning(entry) => self.failure.warn(entry.cause(&self.failure)),
                    Due::End(entry) => self.failure.raise(entry.cause(&self.failure)),
                }
                state = lock(&self.state);
                continue;
            }
            state.looks_at = state.entries.iter().filter_map(Entry::looks_at).min();
            state = match state.looks_at {
                None => {
                    let state = wait(&self.changed, state);
                    awake = Awake::new(2 * ROUND, Instant::now());
                    state
                }
                Some(at) => {
                    let left = at.saturating_duration_since(Instant::now()).min(ROUND);
                    wait_for(&self.changed, state, left)
                }
            };
        }
    }
}

impl State {
    /// Does not count the time in which the thread could not look.
    fn skip(&mut self, awake: &mut Awake, now: Instant) {
        let missed = awake.missed(now);
        for entry in &mut self.entries {
            entry.began = (entry.began + missed).min(now);
        }
    }

    /// Takes a due operation. One for which the group ends is no longer watched.
    fn take_due(&mut self) -> Option<Due> {
        let now = Instant::now();
        let place = self.entries.iter().position(|entry| entry.looks_at().is_some_and(|at| at <= now))?;
        let entry = &mut self.entries[place];
        if now.duration_since(entry.began) >= entry.group_shared.options.timeout {
            return Some(Due::End(self.entries.swap_remove(place)));
        }
        entry.has_warned = true;
        Some(Due::Warning(entry.clone()))
    }
}

impl Entry {
    /// When the operation needs attention, unless it has ended; `None` if that time is unrepresentable.
    fn looks_at(&self) -> Option<Instant> {
        let GroupOptions { timeout, stall_warning, .. } = self.group_shared.options;
        self.began.checked_add(if self.has_warned { timeout } else { stall_warning.min(timeout) })
    }

    fn cause(&self, failure: &Failure) -> Cause {
        self.group_shared.cause(&self.operation, self.began.elapsed(), failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group_path::GroupPath;
    use crate::operation::Identity;

    #[test]
    fn time_in_which_the_process_was_stopped_is_no_wait() {
        let members = Members::of_job(0, 2, Identity::default());
        let group_shared = Arc::new(GroupShared { members, region: None, options: GroupOptions::default() });
        let operation = Watched { name: "all_reduce", bytes: 4, group: GroupPath::default(), sequence: 1 };
        let began = Instant::now();
        let entry = Entry { number: 1, operation, group_shared, began, has_warned: false };
        let mut state = State { entries: vec![entry], entered: 1, looks_at: None, closing: false };
        let mut awake = Awake::new(2 * ROUND, began);
        // Looks, and when the warning is due as seen from there, in seconds.
        for (look, due) in [(1, 30), (2, 30), (3602, 3630), (3603, 3630), (7300, 7327)] {
            state.skip(&mut awake, began + Duration::from_secs(look));
            assert_eq!(state.entries[0].looks_at(), Some(began + Duration::from_secs(due)), "at {look} s");
        }
    }
}
