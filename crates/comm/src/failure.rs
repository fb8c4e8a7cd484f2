//! The failure state of one rank: whether the group has failed, and with which cause.
//!
//! Raising and knowing are two things. A rank that meets an error stops at once and *proposes* it; which proposal is the
//! first of the group is decided in one place (the server at rank 0, or this very state where ranks are threads), and
//! comes back as the verdict. So all ranks report the same cause, although several may fail at the same time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::cause::Cause;

/// How long a rank that proposed a cause waits for the verdict before it takes its own.
const VERDICT_DEADLINE: Duration = Duration::from_secs(1);

/// Carries proposals to where the group decides.
pub(crate) trait Relay: Send + Sync {
    /// Hands over a proposal; must not block for long. The verdict comes through [`Failure::settle`].
    fn propose(&self, cause: &Arc<Cause>);
}

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
        state.verdict.get_or_insert(cause);
        self.stopping.store(true, Ordering::Release);
        self.settled.notify_all();
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
                state.verdict = Some(proposed);
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
    fn without_a_verdict_the_own_proposal_holds() {
        let failure = Failure::default();
        failure.set_relay(Arc::new(Nowhere));
        failure.raise(cause("own"));
        assert_eq!(failure.cause().unwrap().message, "own");
    }
}
