//! Watches the ranks of a job until all have ended.
//!
//! One thread sleeps in `poll` on every possible event: the end of a rank, a signal to the launcher, a piece of output,
//! the end of a piece's writing, the end of a grace period.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use enmasse_comm::{Cause, CauseKind, host_name};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use signal_hook::consts::SIGKILL;

use crate::error::LaunchError;
use crate::error_file::ErrorRecord;
use crate::first_failure::{Ended, first_failure, have_failed_while_stopping};
use crate::groups::survivors;
use crate::inherited::read_report;
use crate::outcome::{Failure, Outcome, Overdue, Status};
use crate::output::Console;
use crate::routes::log_file;
use crate::signals::{Signals, suspend_this_process};
use crate::tail::Tail;
use crate::traceback::uncaught;
use crate::workers::{Worker, Workers};

/// Time limit for SIGKILL to take effect. Many GiB of memory take a while to free; beyond this the process hangs in the
/// kernel.
const KILL_DEADLINE: Duration = Duration::from_secs(5);

/// Time limit for showing the remaining output after a request to stop.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The index of standard error among a rank's streams.
const STDERR: usize = 1;

/// The progress of stopping the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopping {
    No,
    /// This signal was sent; SIGKILL follows at the deadline.
    Asked {
        by: Signal,
        deadline: Instant,
    },
    /// SIGKILL was sent after this signal; the launcher gives up at the deadline.
    Killed {
        by: Signal,
        deadline: Instant,
    },
}

impl Stopping {
    /// How a process ended, by its exit code or by the signal that ended it. A program that was asked to stop may end by the signal, or
    /// exit with the code that shells give to that: neither is a failure of its own.
    fn status(self, code: Option<i32>, signal: Option<i32>) -> Status {
        let (asked, killed) = match self {
            Stopping::No => (None, false),
            Stopping::Asked { by, .. } => (Some(by.as_raw()), false),
            Stopping::Killed { by, .. } => (Some(by.as_raw()), true),
        };
        match (code, signal) {
            (Some(code), _) if asked.is_some_and(|signal| code == 128 + signal) => Status::Stopped,
            (Some(code), _) => Status::Code(code),
            (None, Some(signal)) if asked == Some(signal) => Status::Stopped,
            (None, Some(signal)) if killed && signal == Signal::KILL.as_raw() => Status::Stopped,
            (None, Some(signal)) => Status::Signal(signal),
            // A process that has ended has one of them.
            (None, None) => Status::Stopped,
        }
    }
}

/// An event that `poll` found.
enum Event {
    Signal(usize),
    Recall,
    Ended,
    /// Output of this rank, on standard output (0) or error (1).
    Output(usize, usize),
    /// A piece was written to the launcher's standard output (0) or error (1).
    Written(usize),
    Gone(usize),
}

struct Watch<'a> {
    signals: &'a mut Signals,
    recall: Option<BorrowedFd<'a>>,
    stopping: Stopping,
    /// The signal that made the launcher stop the ranks.
    interrupted: Option<i32>,
    /// The ranks that still ran at the end of the grace.
    overdue: Vec<usize>,
    /// Number of requests read from `recall`.
    recalls: usize,
    /// Whether the first of them made the launcher stop the ranks.
    recalled: bool,
    /// Ranks in the order in which their ends were noticed, each with whether that was before any rank was stopped.
    ended: Vec<(usize, bool)>,
    /// The launcher's standard output and standard error.
    consoles: [Console; 2],
    /// When the remaining output is dropped; `None` unless the launcher was asked to stop.
    leave_at: Option<Instant>,
}

impl Watch<'_> {
    /// Writes a console's pending output at the end, when only signals are left to watch. The reader may never
    /// continue.
    fn drain(&mut self, index: usize) {
        while let Some(console) = self.consoles.get_mut(index)
            && let Some(written) = console.written()
        {
            if self.leave_at.is_some_and(|time| Instant::now() >= time) {
                return console.give_up();
            }
            let timeout = self.leave_at.map(until);
            let signals = self.signals.streams.iter().map(|signal| PollFd::new(&signal.stream, PollFlags::IN));
            let mut polled: Vec<_> = signals.chain([PollFd::from_borrowed_fd(written, PollFlags::IN)]).collect();
            // The effects show below, or in the next round.
            let _ = poll(&mut polled, timeout.as_ref());
            drop(polled);
            console.proceed();
            if let Some(signal) = self.signals.pending() {
                self.signals.request(signal);
                self.interrupted.get_or_insert(signal);
                self.leave_at = Some(Instant::now());
            }
        }
    }
}

impl Workers {
    /// Waits until every rank has ended. Stops all ranks when one fails, when the launcher is asked to stop, or when a
    /// byte arrives on the pipe `recall`; a second byte kills them.
    ///
    /// A signal to the launcher is passed on to the process group of each rank; in the other cases stopping begins with
    /// SIGTERM. Processes that remain after the job's grace are killed; a second Ctrl-C kills at once. Processes that
    /// ranks leave behind in their process groups are stopped in the same way.
    pub(crate) fn supervise(
        mut self,
        signals: &mut Signals,
        recall: Option<BorrowedFd<'_>>,
    ) -> Result<Outcome, LaunchError> {
        let mut watch = Watch {
            signals,
            recall,
            stopping: Stopping::No,
            interrupted: None,
            overdue: Vec::new(),
            recalls: 0,
            recalled: false,
            ended: Vec::new(),
            consoles: [rustix::stdio::stdout(), rustix::stdio::stderr()].map(Console::new),
            leave_at: None,
        };
        while watch.ended.len() < self.list.len() {
            self.wait(&mut watch, &mut Vec::new())?;
        }

        let groups: Vec<Pid> = self.list.iter().map(|worker| worker.pid).collect();
        let gave_up = |watch: &Watch<'_>| matches!(watch.stopping, Stopping::Killed { deadline, .. } if Instant::now() >= deadline);
        let mut left_behind = survivors(&groups);
        if let Stopping::Asked { by, .. } = watch.stopping
            && !left_behind.is_empty()
        {
            // A process that a rank was just starting has not received the signal.
            self.signal(by);
        }
        while !left_behind.is_empty() && !gave_up(&watch) {
            if watch.stopping == Stopping::No {
                self.ask_to_stop(&mut watch, Signal::TERM, self.job.grace);
            }
            self.wait(&mut watch, &mut left_behind)?;
            if left_behind.is_empty() {
                // The ranks may have started others in the meantime.
                left_behind = survivors(&groups);
            }
        }
        if watch.interrupted.is_some() || watch.recalled {
            watch.leave_at = Some(Instant::now() + LAST_WORDS);
        }
        for worker in &mut self.list {
            for index in 0..watch.consoles.len() {
                watch.drain(index);
                while watch.consoles.get_mut(index).is_some_and(|console| worker.move_piece(index, console)) {
                    watch.drain(index);
                }
                watch.drain(index);
            }
        }
        Ok(self.outcome(watch))
    }

    /// Sleeps until an event, and handles it.
    fn wait(&mut self, watch: &mut Watch<'_>, left_behind: &mut Vec<OwnedFd>) -> Result<(), LaunchError> {
        let events = self.events(watch, left_behind)?;
        for event in &events {
            match *event {
                Event::Signal(stream) => self.heed(stream, watch),
                Event::Recall => self.heed_recall(watch),
                Event::Ended => self.collect_ended(watch)?,
                Event::Output(rank, index) => {
                    if let (Some(worker), Some(console)) = (self.list.get_mut(rank), watch.consoles.get_mut(index))
                        && console.is_ready()
                    {
                        worker.move_piece(index, console);
                    }
                }
                Event::Written(index) => watch.consoles.iter_mut().skip(index).take(1).for_each(Console::proceed),
                Event::Gone(_) => {}
            }
        }
        for event in events.iter().rev() {
            if let Event::Gone(index) = *event {
                left_behind.swap_remove(index);
            }
        }
        match watch.stopping {
            Stopping::Asked { deadline, .. } if Instant::now() >= deadline => {
                let late = self.list.iter().enumerate().filter(|(_, worker)| worker.status.is_none());
                watch.overdue = late.map(|(local_rank, _)| self.assignment.first_rank + local_rank).collect();
                self.kill(watch);
            }
            Stopping::Killed { deadline, .. } if Instant::now() >= deadline => self.give_up(watch),
            _ => {}
        }
        Ok(())
    }

    /// The events so far; otherwise waits for one, or for a deadline, which returns none.
    fn events(&self, watch: &Watch<'_>, left_behind: &[OwnedFd]) -> Result<Vec<Event>, LaunchError> {
        let mut descriptors = Vec::new();
        for (index, signal) in watch.signals.streams.iter().enumerate() {
            descriptors.push((Event::Signal(index), PollFd::new(&signal.stream, PollFlags::IN)));
        }
        if let Some(recall) = watch.recall.filter(|_| !matches!(watch.stopping, Stopping::Killed { .. })) {
            descriptors.push((Event::Recall, PollFd::from_borrowed_fd(recall, PollFlags::IN)));
        }
        for (rank, worker) in self.list.iter().enumerate() {
            if worker.status.is_none() {
                descriptors.push((Event::Ended, PollFd::new(&worker.pidfd, PollFlags::IN)));
            }
            for (index, (stream, console)) in worker.streams.iter().zip(&watch.consoles).enumerate() {
                if let Some(stream) = stream.as_ref().filter(|_| console.is_ready()) {
                    descriptors.push((Event::Output(rank, index), PollFd::new(stream, PollFlags::IN)));
                }
            }
        }
        for (index, console) in watch.consoles.iter().enumerate() {
            let written = console.written().map(|written| PollFd::from_borrowed_fd(written, PollFlags::IN));
            descriptors.extend(written.map(|written| (Event::Written(index), written)));
        }
        for (index, pidfd) in left_behind.iter().enumerate() {
            descriptors.push((Event::Gone(index), PollFd::new(pidfd, PollFlags::IN)));
        }

        let (events, mut polled): (Vec<_>, Vec<_>) = descriptors.into_iter().unzip();
        let timeout = match watch.stopping {
            Stopping::No => None,
            Stopping::Asked { deadline, .. } | Stopping::Killed { deadline, .. } => Some(until(deadline)),
        };
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Err(source) => return Err(LaunchError::kernel("wait for processes")(source)),
        }
        let happened = events.into_iter().zip(&polled).filter(|(_, descriptor)| !descriptor.revents().is_empty());
        Ok(happened.map(|(event, _)| event).collect())
    }

    /// Passes on the first request to stop, and gives the ranks time to act on it. A second Ctrl-C kills them; a
    /// scheduler's repetition does not.
    fn heed(&self, stream: usize, watch: &mut Watch<'_>) {
        let Some(stream) = watch.signals.streams.get_mut(stream) else { return };
        let number = stream.number;
        let arrivals = stream.arrivals();
        let stops = stream.stops();
        let Some(signal) = Signal::from_named_raw(number) else { return };
        if signal == Signal::TSTP && arrivals > 0 {
            return self.suspend(watch);
        }
        for _ in 0..arrivals {
            if !stops {
                self.signal(signal);
                continue;
            }
            // Also while a failure is handled: then the ranks do not start again.
            watch.signals.request(number);
            match watch.stopping {
                Stopping::No => {
                    watch.interrupted = Some(number);
                    self.ask_to_stop(watch, signal, self.job.signal_grace);
                }
                Stopping::Asked { .. } if signal == Signal::INT || signal == Signal::QUIT => self.kill(watch),
                Stopping::Asked { .. } | Stopping::Killed { .. } => {}
            }
        }
    }

    /// Stops the ranks and this process, until the process is continued (Ctrl-Z and `fg`). Other ranks than these may
    /// run elsewhere; they go by their own clocks.
    fn suspend(&self, watch: &mut Watch<'_>) {
        let began = Instant::now();
        self.signal(Signal::STOP);
        suspend_this_process();
        self.signal(Signal::CONT);
        // The ranks had no time to act in.
        if let Stopping::Asked { deadline, .. } | Stopping::Killed { deadline, .. } = &mut watch.stopping {
            *deadline += began.elapsed();
        }
    }

    /// Reads one request from the pipe, and leaves later ones there.
    fn heed_recall(&self, watch: &mut Watch<'_>) {
        let Some(recall) = watch.recall else { return };
        if !matches!(rustix::io::read(recall, &mut [0]), Ok(1)) {
            // The requester is gone.
            watch.recall = None;
            return;
        }
        watch.recalls += 1;
        match watch.stopping {
            Stopping::No => {
                watch.recalled = true;
                self.ask_to_stop(watch, Signal::TERM, self.job.grace);
            }
            Stopping::Asked { .. } if watch.recalls > 1 => self.kill(watch),
            // The ranks are being stopped for another reason, which takes precedence.
            Stopping::Asked { .. } | Stopping::Killed { .. } => {}
        }
    }

    /// Records every rank that has ended by now, and stops the others if one of them failed.
    ///
    /// All ranks are checked before any is stopped, to tell ranks that failed by themselves from those that were
    /// stopped.
    fn collect_ended(&mut self, watch: &mut Watch<'_>) -> Result<(), LaunchError> {
        for (rank, worker) in self.list.iter_mut().enumerate().filter(|(_, worker)| worker.status.is_none()) {
            if let Some(status) = worker.poll_status(watch.stopping)? {
                log::info!("rank {} {status}", self.assignment.first_rank + rank);
                worker.status = Some(status);
                watch.ended.push((rank, watch.stopping == Stopping::No));
            }
        }
        let has_failed = |worker: &Worker| worker.status.is_some_and(|status| status != Status::Code(0));
        if watch.stopping == Stopping::No && self.list.iter().any(has_failed) {
            self.ask_to_stop(watch, Signal::TERM, self.job.grace);
        }
        Ok(())
    }

    fn ask_to_stop(&self, watch: &mut Watch<'_>, by: Signal, grace: Duration) {
        log::info!("the ranks are asked to stop by signal {}", by.as_raw());
        self.signal(by);
        // A process that was stopped can neither save nor end.
        self.signal(Signal::CONT);
        watch.stopping = Stopping::Asked { by, deadline: Instant::now() + grace };
    }

    fn kill(&self, watch: &mut Watch<'_>) {
        let Stopping::Asked { by, .. } = watch.stopping else { return };
        log::warn!("the ranks that are left are killed");
        self.signal(Signal::KILL);
        watch.stopping = Stopping::Killed { by, deadline: Instant::now() + KILL_DEADLINE };
    }

    fn give_up(&mut self, watch: &mut Watch<'_>) {
        for (rank, worker) in self.list.iter_mut().enumerate().filter(|(_, worker)| worker.status.is_none()) {
            worker.status = Some(Status::Unkillable);
            watch.ended.push((rank, false));
        }
    }

    fn outcome(&mut self, watch: Watch<'_>) -> Outcome {
        let first_rank = self.assignment.first_rank;
        let ended: Vec<Ended> = watch
            .ended
            .iter()
            .filter_map(|&(local_rank, before_stop)| {
                let worker = self.list.get_mut(local_rank)?;
                let cause = read_report(&mut worker.report);
                let record = self.job.logs.rank_folder(self.assignment.attempt, local_rank);
                let record = record.and_then(|folder| ErrorRecord::read(&folder.join("error.json")));
                Some(Ended { rank: first_rank + local_rank, status: worker.status?, before_stop, cause, record })
            })
            .collect();
        if let Some(signal) = watch.interrupted.filter(|_| !have_failed_while_stopping(&ended)) {
            let overdue = Overdue { ranks: watch.overdue, grace: self.job.signal_grace };
            return Outcome::Interrupted { signal, overdue: Some(overdue).filter(|overdue| !overdue.ranks.is_empty()) };
        }
        if watch.recalled {
            return Outcome::Recalled;
        }
        let Some((rank, cause)) = first_failure(&ended) else { return Outcome::Done };
        let local_rank = rank.and_then(|rank| rank.checked_sub(first_rank));
        let culprit = local_rank.and_then(|local_rank| self.list.get_mut(local_rank));
        let (pid, status) = culprit.as_ref().map(|worker| (worker.child.id(), worker.status)).unzip();
        let mut stderr = culprit.map(Worker::last_lines).unwrap_or_default();
        let log =
            local_rank.and_then(|rank| log_file(&self.job, &self.assignment, rank, false)).filter(|log| log.is_file());
        if let Some(log) = log.as_deref().filter(|_| stderr.is_empty()) {
            stderr = Tail::of_file(log).into_lines();
        }
        let record = ended.into_iter().find(|ended| Some(ended.rank) == rank).and_then(|ended| ended.record);
        let logs = log.and_then(|log| Some(log.parent()?.to_owned()));
        let for_memory = match status {
            Some(Some(Status::Signal(SIGKILL))) => self.memory_kills.any_since(),
            _ => Some(false),
        };
        let host = match rank {
            Some(_) => host_name(),
            None => cause.as_ref().map(|cause| cause.host.clone()).unwrap_or_default(),
        };
        let rank = rank.or_else(|| cause.as_ref()?.rank);
        let exception = || uncaught(status.flatten()?, &stderr);
        let cause = cause.or_else(|| Some(Cause::new(CauseKind::Error, exception()?).of_rank_here(rank?)));
        let output = self.job.output;
        Outcome::Failed(Box::new(Failure {
            rank,
            local_rank,
            host,
            pid,
            status: status.flatten(),
            cause,
            traceback: record.map(|record| record.lines).unwrap_or_default(),
            stderr,
            for_memory,
            logs,
            output,
        }))
    }
}

impl Worker {
    /// How the process ended, if it has. It is not reaped: that would free its number, which identifies its group.
    fn poll_status(&self, stopping: Stopping) -> Result<Option<Status>, LaunchError> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let status = waitid(WaitId::Pid(self.pid), options).map_err(LaunchError::kernel("wait for a process"))?;
        Ok(status.map(|status| stopping.status(status.exit_status(), status.terminating_signal())))
    }

    /// Moves a piece of a stream, if there is one: false if there is no more for now.
    fn move_piece(&mut self, index: usize, console: &mut Console) -> bool {
        let Some(stream) = self.streams.get_mut(index) else { return false };
        let Some(more) = stream.as_mut().map(|passage| passage.move_piece(console)) else { return false };
        if more.is_none()
            && let Some(ended) = stream.take()
            && index == STDERR
        {
            self.tail = ended.tail;
        }
        more.unwrap_or(false)
    }

    /// The last lines of its standard error, if they passed through the launcher.
    fn last_lines(&mut self) -> Vec<String> {
        let open = self.streams.get_mut(STDERR).and_then(Option::take).map(|stream| stream.tail);
        open.unwrap_or_else(|| std::mem::take(&mut self.tail)).into_lines()
    }
}

fn until(deadline: Instant) -> Timespec {
    let left = deadline.saturating_duration_since(Instant::now());
    // Rounded up to a whole millisecond, so that waking up means that the deadline has passed.
    let left = Duration::from_millis(left.as_millis().try_into().unwrap_or(i64::MAX as u64).saturating_add(1));
    Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: a rank that another one blamed, and that had caught the launcher's SIGTERM, gave the job the exit code 143.
    #[test]
    fn a_rank_that_was_asked_to_stop_has_no_code_of_its_own() {
        let deadline = Instant::now();
        let asked = Stopping::Asked { by: Signal::TERM, deadline };
        let killed = Stopping::Killed { by: Signal::TERM, deadline };
        let check = |stopping: Stopping, code: Option<i32>, signal: Option<i32>, expected: Status| {
            assert_eq!(stopping.status(code, signal), expected, "{stopping:?} {code:?} {signal:?}");
        };
        check(Stopping::No, Some(143), None, Status::Code(143));
        check(asked, Some(143), None, Status::Stopped);
        check(killed, Some(143), None, Status::Stopped);
        check(asked, Some(130), None, Status::Code(130));
        check(asked, Some(1), None, Status::Code(1));
        check(Stopping::No, None, Some(15), Status::Signal(15));
        check(asked, None, Some(15), Status::Stopped);
        check(asked, None, Some(9), Status::Signal(9));
        check(killed, None, Some(9), Status::Stopped);
        check(killed, None, Some(11), Status::Signal(11));
    }
}
