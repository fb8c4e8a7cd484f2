//! Signals that ask this process to stop.
//!
//! | Signal | A run that trains | Anything else |
//! |---|---|---|
//! | SIGINT (Ctrl-C) | saves at the end of the step and ends with 130; a second request ends it at once | ends at once, with 130 |
//! | SIGTERM | the same, with 143 | ends at once, with 143 |
//! | either, of a server | | stops taking requests, answers those that it has, and ends with 0; a second one ends it at once |
//! | the requeue signal | saves at the end of the step, has its job requeued, and ends with 75 | the kernel's default |
//!
//! Before the first step there is nothing to save: a request ends the process at once, and the folder made for the run is
//! removed.
//!
//! In a rank that a launcher watches, a second request has no further effect: stopping a whole job, as Slurm or a terminal
//! does, signals the launcher, which passes the signal on, as well as the rank itself. The launcher kills the rank at a second
//! Ctrl-C, but not at a second SIGTERM.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use enmasse_comm::Group;
use enmasse_system::files::remove_own_temporaries;
use enmasse_system::writer;
use enmasse_train::{RequeueSignal, Stop, StopRequests, remove_unbegun};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::emulate_default_handler;

use crate::failure::{Failure, INTERRUPTED, TERMINATED, failed};
use crate::output::say;
use crate::output::say_failure;

/// While this exists, requests to stop are handled here. Files appear whole or not at all however a process ends, so no
/// write needs to be awaited. Afterwards the next watcher gets the requests.
pub struct Interrupts(Handle);

impl Interrupts {
    /// Starts watching, in a process that has nothing to save.
    pub fn watch() -> Result<Self, Failure> {
        Self::start(&[SIGINT, SIGTERM], end)
    }

    /// Starts watching, in a process that writes a large file into `folder`. Some file systems need a temporary name for it.
    pub fn watch_writer(folder: &Path) -> Result<Self, Failure> {
        let folder = folder.to_owned();
        Self::start(&[SIGINT, SIGTERM], move |signal| {
            // Without permission there is no such file.
            let _ = remove_own_temporaries(&folder);
            end(signal);
        })
    }

    /// Starts watching, in a server: the first request calls `stop`, the second one ends the process.
    pub fn watch_server(stop: impl FnOnce() + Send + 'static) -> Result<Self, Failure> {
        let stop = Mutex::new(Some(stop));
        Self::start(&[SIGINT, SIGTERM], move |signal| {
            match stop.lock().unwrap_or_else(PoisonError::into_inner).take() {
                Some(stop) => stop(),
                None => end(signal),
            }
        })
    }

    /// Starts watching, in a process that trains.
    pub fn watch_run(signals: &RunSignals) -> Result<Self, Failure> {
        let signals = signals.clone();
        Self::start(&[SIGINT, SIGTERM, SIGUSR1, SIGUSR2], move |signal| signals.heed(signal))
    }

    fn start(signals: &[i32], heed: impl Fn(i32) + Send + 'static) -> Result<Self, Failure> {
        let start = || -> io::Result<_> {
            let mut signals = Signals::new(signals)?;
            let handle = signals.handle();
            let listen = move || signals.forever().for_each(heed);
            std::thread::Builder::new().name("signals".to_owned()).spawn(listen)?;
            Ok(Interrupts(handle))
        };
        // The usual reason why a thread or a pipe is refused.
        start().map_err(|error| {
            failed!("cannot handle signals: {error}: check the limits on processes and open files (ulimit -a)")
        })
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn end(signal: i32) {
    let failure = if signal == SIGTERM { Failure::Terminated } else { Failure::Interrupted };
    writer::exit(say_failure(&failure));
}

/// The meaning of signals in a process that trains. Clones share it.
#[derive(Clone, Default)]
pub struct RunSignals {
    /// The run reads stop requests from here.
    pub requests: StopRequests,
    state: Arc<Mutex<SignalState>>,
}

#[derive(Default)]
struct SignalState {
    /// The rank that this process is, if a launcher watches it.
    launched: Option<usize>,
    /// Its part in the run.
    part: RunPhase,
    /// The folder that was made for the run.
    made: Option<PathBuf>,
    /// `None` before all options are parsed.
    requeue: Option<RequeueSignal>,
    /// Signals that arrived before their meaning was known.
    early: Vec<i32>,
}

impl SignalState {
    /// What a request that the run heeds says at once, before the other ranks know of it.
    fn announcement(&self, signal: i32, again: bool) -> Option<&'static str> {
        let is_launched = self.launched.is_some();
        // Rank 0 speaks for all ranks. After a failure nothing is saved, and the cause is told instead.
        if again || self.launched.is_some_and(|rank| rank > 0) || is_launched && self.part.is_over() {
            return None;
        }
        match signal {
            // After a failure of one rank the launcher sends this to the others, often before they know of it. If the run
            // does stop, its last line says so.
            SIGTERM if is_launched && self.part.has_others() => None,
            SIGTERM if is_launched => Some("terminated: saving at the end of this step"),
            SIGTERM => Some("terminated: saving at the end of this step; send it again to end at once"),
            _ => Some("interrupted: saving at the end of this step; press Ctrl-C again to end at once"),
        }
    }
}

/// The part of a launched rank in its run.
#[derive(Default)]
enum RunPhase {
    /// The ranks have not met.
    #[default]
    Ahead,
    /// With a group, if there are others.
    Runs(Option<Group>),
    /// It has ended, well or not.
    Over,
}

impl RunPhase {
    /// Whether there is nothing to save any more.
    fn is_over(&self) -> bool {
        match self {
            RunPhase::Ahead | RunPhase::Runs(None) => false,
            RunPhase::Runs(Some(group)) => group.cause().is_some(),
            RunPhase::Over => true,
        }
    }

    /// Whether the failure of another rank can be the reason for a request. Before the ranks have met, nobody knows.
    fn has_others(&self) -> bool {
        !matches!(self, RunPhase::Runs(None))
    }
}

impl RunSignals {
    /// A launcher watches this process, which is one of its ranks.
    pub fn launched(&self, rank: usize) {
        self.state().launched = Some(rank);
    }

    /// Runs `part` of a launched rank, which has joined this group.
    pub fn within<T>(&self, group: Option<Group>, part: impl FnOnce() -> T) -> T {
        self.state().part = RunPhase::Runs(group);
        let ended = part();
        self.state().part = RunPhase::Over;
        ended
    }

    /// This folder was made for the run, and is removed if the run ends before it begins.
    pub fn made(&self, folder: &Path) {
        self.state().made = Some(folder.to_owned());
    }

    /// Removes the folder that was made for the run, if the run has not begun.
    pub fn remove_unbegun(&self) {
        let made = self.state().made.take();
        made.iter().for_each(|folder| remove_unbegun(folder));
    }

    /// Sets the signal that asks for a requeue.
    pub fn requeue_on(&self, signal: RequeueSignal) {
        let early = {
            let mut state = self.state();
            state.requeue = Some(signal);
            std::mem::take(&mut state.early)
        };
        early.into_iter().for_each(|signal| self.heed(signal));
    }

    fn heed(&self, signal: i32) {
        match signal {
            SIGINT => self.stop(signal, Stop::Interrupt),
            SIGTERM => self.stop(signal, Stop::End),
            other => {
                let requeue = {
                    let mut state = self.state();
                    if state.requeue.is_none() {
                        state.early.push(other);
                    }
                    state.requeue
                };
                match requeue.map(number) {
                    None => {}
                    Some(Some(chosen)) if chosen == other => {
                        self.requests.ask(Stop::Requeue);
                    }
                    Some(_) => default(other),
                }
            }
        }
    }

    /// Has the run saved at the end of its step, or ends this process where there is no step, or where that was asked before.
    fn stop(&self, signal: i32, stop: Stop) {
        let again = self.requests.asked() >= Some(Stop::Interrupt);
        let heeded = self.requests.ask(stop);
        let (launched, announcement) = {
            let state = self.state();
            (state.launched, state.announcement(signal, again))
        };
        match launched {
            _ if !heeded => {
                self.remove_unbegun();
                match launched {
                    // The launcher knows the reason.
                    Some(_) => writer::exit(if signal == SIGTERM { TERMINATED } else { INTERRUPTED }),
                    None => end(signal),
                }
            }
            None if again => end(signal),
            _ => announcement.iter().for_each(say),
        }
    }

    fn state(&self) -> MutexGuard<'_, SignalState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn number(signal: RequeueSignal) -> Option<i32> {
    match signal {
        RequeueSignal::Usr1 => Some(SIGUSR1),
        RequeueSignal::Usr2 => Some(SIGUSR2),
        RequeueSignal::None => None,
    }
}

/// Ends this process as if the signal had no handler.
fn default(signal: i32) {
    // It fails only for invalid signal numbers.
    let _ = emulate_default_handler(signal);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: after SIGKILL of a rank, the launcher's SIGTERM to rank 0 often came before rank 0's group had failed,
    /// and rank 0 said that it was saving.
    #[test]
    fn a_rank_that_is_stopped_after_anothers_failure_said_that_it_was_saving() {
        use enmasse_comm::{Cause, CauseKind};
        let pair = Group::threads(2).unwrap();
        let failed = Group::threads(2).unwrap();
        failed[0].abort(Cause::new(CauseKind::Exited, "").of_rank(1));
        let check = |launched: Option<usize>, part: RunPhase, signal: i32, again: bool, expected: Option<&str>| {
            let state = SignalState { launched, part, ..SignalState::default() };
            assert_eq!(state.announcement(signal, again), expected, "{launched:?} {signal} {again}");
        };
        let runs = |group: &Group| RunPhase::Runs(Some(group.clone()));
        let terminated = "terminated: saving at the end of this step";
        let interrupted = "interrupted: saving at the end of this step; press Ctrl-C again to end at once";
        check(Some(0), runs(&pair[0]), SIGTERM, false, None);
        check(Some(1), runs(&pair[1]), SIGTERM, false, None);
        check(Some(0), runs(&failed[0]), SIGTERM, false, None);
        check(Some(0), RunPhase::Over, SIGTERM, false, None);
        check(Some(0), RunPhase::Ahead, SIGTERM, false, None);
        check(Some(0), RunPhase::Runs(None), SIGTERM, false, Some(terminated));
        check(None, RunPhase::Runs(None), SIGTERM, false, Some(&format!("{terminated}; send it again to end at once")));
        check(None, RunPhase::Runs(None), SIGTERM, true, None);
        check(Some(0), runs(&pair[0]), SIGINT, false, Some(interrupted));
        check(Some(1), runs(&pair[1]), SIGINT, false, None);
        check(Some(0), runs(&failed[0]), SIGINT, false, None);
        check(Some(0), runs(&pair[0]), SIGINT, true, None);
        check(None, RunPhase::Ahead, SIGINT, false, Some(interrupted));
    }

    #[test]
    fn early_requeue_signals_are_kept() {
        let signals = RunSignals::default();
        signals.heed(SIGUSR2);
        assert_eq!(signals.requests.asked(), None);
        signals.requeue_on(RequeueSignal::Usr2);
        assert_eq!(signals.requests.asked(), Some(Stop::Requeue));

        let signals = RunSignals::default();
        signals.requeue_on(RequeueSignal::Usr1);
        assert_eq!(signals.requests.asked(), None);
        signals.heed(SIGUSR1);
        assert_eq!(signals.requests.asked(), Some(Stop::Requeue));
    }
}
