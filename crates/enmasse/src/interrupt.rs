//! Signals that ask this process to stop.
//!
//! | Signal | A run that trains | Anything else |
//! |---|---|---|
//! | SIGINT (Ctrl-C) | ends at once, with 130 | the same |
//! | SIGTERM | saves at the end of the step and ends with 143; a second one ends it at once | ends at once, with 143 |
//! | the requeue signal | saves at the end of the step, has its job requeued, and ends with 75 | the kernel's default |
//!
//! In a rank that a launcher watches, SIGINT keeps its default, and a second SIGTERM means what the first one did: who stops a
//! whole job, as Slurm does, tells the launcher, which passes it on, and the rank itself. That launcher can kill.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use enmasse_train::{RequeueSignal, Stop, StopRequests};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::emulate_default_handler;

use crate::failure::{Failure, TERMINATED};
use crate::output::say;

/// While this lives, requests to stop are heeded. Files appear whole or not at all however a process ends, so that none needs
/// to be waited for. Afterwards such requests are for the next to ask for them.
pub struct Interrupts(Handle);

impl Interrupts {
    /// Begins to watch, in a process that has nothing to save.
    pub fn watch() -> Result<Self, Failure> {
        Self::start(&[SIGINT, SIGTERM], end)
    }

    /// Begins to watch, in a process that trains.
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
        // What a thread or a pipe is refused for.
        let remedy = "check the limits on processes and open files (ulimit -a)";
        start().map_err(|error| Failure::Error(format!("cannot handle signals: {error}: {remedy}")))
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn end(signal: i32) {
    let failure = if signal == SIGTERM { Failure::Terminated } else { Failure::Interrupted };
    std::process::exit(failure.say().into());
}

/// What the signals to a process that trains mean. Clones are the same.
#[derive(Clone, Default)]
pub struct RunSignals {
    /// Where the run hears of them.
    pub requests: StopRequests,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    launched: bool,
    /// None before all options are read.
    requeue: Option<RequeueSignal>,
    /// Arrived before it was known what they mean.
    early: Vec<i32>,
}

impl RunSignals {
    /// Somebody watches over this process.
    pub fn launched(&self) {
        self.state().launched = true;
    }

    /// Says which signal asks for a requeue.
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
            SIGINT if self.state().launched => default(signal),
            SIGINT => end(signal),
            SIGTERM => {
                let again = self.requests.asked() == Some(Stop::End);
                let launched = self.state().launched;
                let heeded = self.requests.ask(Stop::End);
                match launched {
                    // The launcher knows why.
                    true if !heeded => std::process::exit(TERMINATED.into()),
                    true => {}
                    false if again || !heeded => end(signal),
                    false => say("terminated: saving at the end of this step; once more to end at once"),
                }
            }
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

    fn state(&self) -> MutexGuard<'_, State> {
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

/// Ends this process as if nobody handled the signal.
fn default(signal: i32) {
    // It fails only for numbers that are no signals.
    let _ = emulate_default_handler(signal);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_arrives_before_it_is_known_to_mean_a_requeue_is_kept() {
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
