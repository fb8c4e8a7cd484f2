//! The failure state of one rank: whether the group has failed, and with which cause.
//!
//! Raising and knowing are two things. A rank that meets an error stops at once and *proposes* it; which proposal is the
//! first of the group is decided in one place (the server at rank 0, or this very state where ranks are threads), and
//! comes back as the verdict. So all ranks report the same cause, although several may fail at the same time.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::cause::Cause;
use crate::flight::Standing;

/// How long a rank that proposed a cause waits for the verdict before it takes its own.
const VERDICT_DEADLINE: Duration = Duration::from_secs(1);

/// Carries proposals to where the group decides.
pub(crate) trait Relay: Send + Sync {
    /// Hands over a proposal; must not block for long. The verdict comes through [`Failure::settle`].
    fn propose(&self, cause: &Arc<Cause>);

    /// What a rank has last told of itself, where that is known.
    fn standing(&self, _rank: usize) -> Option<Standing> {
        None
    }
}

/// What [`crate::Group::observe`] tells of.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// Ranks wait for others longer than [`crate::Options::stall_warning`]; told once for an operation, and to one waiting rank.
    Stalled(Stall),
    /// The group has failed; told to every rank, once.
    Failed(Arc<Cause>),
}

/// Ranks that keep the others waiting. Prints as a line without its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The ranks that are waited for: one at least.
    pub late: Vec<usize>,
    /// The operation, in words.
    pub operation: String,
    /// Its number in the group.
    pub sequence: u64,
    /// For how long.
    pub waited: Duration,
    /// What the first of them is known to be at; empty where that is not known.
    pub standing: String,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, late) = match &self.late[..] {
            [rank] => ("has", format!("rank {rank}")),
            ranks => ("have", format!("ranks {}", ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(" "))),
        };
        let Stall { operation, sequence, waited, .. } = self;
        write!(
            f,
            "{late} {verb} kept the others waiting for {:.0} s in {operation} #{sequence}",
            waited.as_secs_f64()
        )?;
        if !self.standing.is_empty() {
            write!(f, ": {}", self.standing)?;
        }
        Ok(())
    }
}

type Observer = dyn Fn(&Event) + Send + Sync;

/// See the module.
#[derive(Default)]
pub(crate) struct Failure {
    stopping: AtomicBool,
    state: Mutex<State>,
    settled: Condvar,
    relay: OnceLock<Arc<dyn Relay>>,
}

#[derive(Default)]
struct State {
    proposed: Option<(Arc<Cause>, Instant)>,
    verdict: Option<Arc<Cause>>,
    /// Who is told, with the rank that they belong to: ranks that are threads share this state.
    observers: Vec<(usize, Arc<Observer>)>,
}

impl Failure {
    /// From now on proposals go through `relay`; without one the first proposal is the verdict.
    pub(crate) fn set_relay(&self, relay: Arc<dyn Relay>) {
        // Set once, by the constructor of the group.
        let _ = self.relay.set(relay);
    }

    /// Whether the group has failed: one atomic load.
    #[inline]
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Stops this rank, and proposes `cause` unless something was proposed or decided before.
    pub(crate) fn raise(&self, cause: Cause) {
        let cause = Arc::new(cause);
        {
            let mut state = self.lock();
            if state.proposed.is_some() || state.verdict.is_some() {
                return;
            }
            state.proposed = Some((cause.clone(), Instant::now()));
            self.stopping.store(true, Ordering::Release);
        }
        match self.relay.get() {
            Some(relay) => relay.propose(&cause),
            None => self.settle(cause),
        }
    }

    /// The group's decision; only the first counts.
    pub(crate) fn settle(&self, cause: Arc<Cause>) {
        let mut state = self.lock();
        if state.verdict.is_some() {
            return;
        }
        state.verdict = Some(cause.clone());
        self.stopping.store(true, Ordering::Release);
        self.settled.notify_all();
        let observers = state.observers.clone();
        drop(state);
        observers.iter().for_each(|(_, observer)| call(observer, &Event::Failed(cause.clone())));
    }

    /// Has `observer` told of what concerns `rank`; at once, where the group has failed already.
    pub(crate) fn observe(&self, rank: usize, observer: Arc<Observer>) {
        let mut state = self.lock();
        match state.verdict.clone() {
            None => state.observers.push((rank, observer)),
            Some(cause) => {
                drop(state);
                call(&observer, &Event::Failed(cause));
            }
        }
    }

    /// Tells the observers of `rank` that it waits, and what is known of the first one that it waits for.
    pub(crate) fn stalled(&self, rank: usize, stall: Stall) {
        let standing = stall.late.first().and_then(|&late| self.relay.get()?.standing(late));
        let standing = standing.map_or(String::new(), |standing| standing.to_string());
        let event = Event::Stalled(Stall { standing, ..stall });
        let observers = self.lock().observers.clone();
        observers.iter().filter(|(of, _)| *of == rank).for_each(|(_, observer)| call(observer, &event));
    }

    /// Why the group failed, once it has. May wait for the verdict, up to a second after the proposal.
    pub(crate) fn cause(&self) -> Option<Arc<Cause>> {
        let mut state = self.lock();
        loop {
            if let Some(verdict) = &state.verdict {
                return Some(verdict.clone());
            }
            let (proposed, since) = state.proposed.clone()?;
            let left = VERDICT_DEADLINE.saturating_sub(since.elapsed());
            if left.is_zero() {
                drop(state);
                self.settle(proposed);
                state = self.lock();
            } else {
                state = self.settled.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// An error with the cause when the group has failed.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Arc<Cause>> {
        if self.is_stopping() { self.cause().map_or(Ok(()), Err) } else { Ok(()) }
    }

    /// Waits for the verdict of somebody else, such as the server's on a peer whose connection just broke: true if the
    /// group fails within `limit`.
    pub(crate) fn fails_within(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut state = self.lock();
        while state.verdict.is_none() && state.proposed.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.settled.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// A panic elsewhere leaves the state whole: every change to it is a single assignment.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A panic of an observer is its own affair: the thread that tells keeps the group alive.
fn call(observer: &Arc<Observer>, event: &Event) {
    let _ = catch_unwind(AssertUnwindSafe(|| observer(event)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cause::CauseKind;

    fn cause(message: &str) -> Cause {
        Cause::new(CauseKind::Error, message)
    }

    struct Nowhere;

    impl Relay for Nowhere {
        fn propose(&self, _: &Arc<Cause>) {}
    }

    #[test]
    fn the_first_cause_wins() {
        let failure = Failure::default();
        assert_eq!((failure.check(), failure.cause()), (Ok(()), None));
        failure.raise(cause("first"));
        failure.raise(cause("second"));
        failure.settle(Arc::new(cause("third")));
        assert_eq!(failure.check().unwrap_err().message, "first");
        assert!(failure.fails_within(Duration::ZERO));
    }

    #[test]
    fn the_verdict_overrules_the_own_proposal() {
        let failure = Failure::default();
        failure.set_relay(Arc::new(Nowhere));
        failure.raise(cause("own"));
        assert!(failure.is_stopping());
        failure.settle(Arc::new(cause("verdict")));
        assert_eq!(failure.cause().unwrap().message, "verdict");
    }

    #[test]
    fn observers_hear_of_the_verdict_once() {
        let failure = Failure::default();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let observer = |name: &'static str| -> Arc<Observer> {
            let heard = heard.clone();
            Arc::new(move |event: &Event| match event {
                Event::Failed(cause) => heard.lock().unwrap().push(format!("{name}: {}", cause.message)),
                Event::Stalled(stall) => heard.lock().unwrap().push(format!("{name}: {stall}")),
            })
        };
        failure.observe(0, observer("before"));
        failure.observe(1, Arc::new(|_| panic!("an observer's own affair")));
        let stall = Stall {
            late: vec![1, 3],
            operation: "barrier".into(),
            sequence: 7,
            waited: Duration::from_secs(30),
            standing: String::new(),
        };
        failure.stalled(1, stall.clone());
        failure.stalled(0, stall);
        failure.raise(cause("first"));
        failure.settle(Arc::new(cause("second")));
        failure.observe(0, observer("behind"));
        let told = "before: ranks 1 3 have kept the others waiting for 30 s in barrier #7";
        assert_eq!(*heard.lock().unwrap(), [told, "before: first", "behind: first"]);
    }

    #[test]
    fn without_a_verdict_the_own_proposal_holds() {
        let failure = Failure::default();
        failure.set_relay(Arc::new(Nowhere));
        failure.raise(cause("own"));
        assert_eq!(failure.cause().unwrap().message, "own");
    }
}
