//! The failure state of one rank: whether the group has failed, and with which cause.
//!
//! Raising and deciding are separate. A rank that meets an error stops at once and *proposes* it as the cause. One
//! place (the server at rank 0, or this very state where ranks are threads) decides which proposal is the first of the
//! group, and returns it as the decision. So all ranks report the same cause, even if several fail at the same time.
//!
//! Observers of a group are called on a thread of their own, so that none of them holds up a thread
//! that keeps the job alive.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::arrivals::{Arrivals, Question};
use crate::cause::Cause;
use crate::net::refused::Refused;
use crate::sync::AtomicBool;
use crate::sync::locks::{Condvar, Mutex, lock, wait_for, wait_while};

/// How long a rank that proposed a cause waits for the decision before it settles for its own.
const DECISION_DEADLINE: Duration = Duration::from_secs(1);

/// The number of stalls remembered, so that each is reported only once.
const STALLS_KEPT: usize = 16;

/// The number of ports whose refused connections are remembered for observers that come later: a job's group is formed
/// before it can have any.
const REFUSED_KEPT: usize = 16;

/// Carries proposals to the place where the group decides.
pub(crate) trait Relay: Send + Sync {
    /// Passes on a proposal; must not block for long. The decision arrives through [`Failure::settle`].
    fn propose(&self, cause: &Arc<Cause>);

    /// Reports that this rank waits for another. The report reaches rank 0 through [`Failure::stalled`].
    fn warn(&self, stall: Arc<Cause>);

    /// Who has joined an operation of another library, as far as rank 0 knows; `None` if it does not answer soon.
    fn arrivals(&self, question: Question) -> Option<Arrivals>;
}

/// Events that [`crate::Group::observe`] reports.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum GroupEvent {
    /// Ranks have waited for another longer than [`crate::GroupOptions::stall_warning`]. Holds the cause that follows
    /// if it stays away. Reported to rank 0 alone, once per operation.
    Stalled(Arc<Cause>),
    /// The group has failed. Reported once to every rank.
    Failed(Arc<Cause>),
    /// A port has refused connections that did not prove the token, while a group formed. Reported to the rank that listened
    /// there, once for each port.
    Refused(Arc<Refused>),
}

type Observer = dyn Fn(&GroupEvent) + Send + Sync;

impl GroupEvent {
    /// Writes the event to the `log` facade.
    fn log(&self) {
        match self {
            GroupEvent::Stalled(stall) => log::warn!("{stall}"),
            GroupEvent::Failed(cause) => log::error!("{cause}"),
            GroupEvent::Refused(refused) => log::warn!("{refused}"),
        }
    }
}

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Failure {
    stopping: AtomicBool,
    state: Mutex<State>,
    settled: Condvar,
    relay: OnceLock<Arc<dyn Relay>>,
    /// The machine of each rank of the job, once all have met.
    hosts: OnceLock<Vec<String>>,
    /// Closes, without a message, when observers have been told of the latest event. Their thread first waits for the one
    /// before.
    telling: Mutex<Option<Receiver<()>>>,
}

#[derive(Default)]
struct State {
    proposed: Option<(Arc<Cause>, Instant)>,
    decision: Option<Arc<Cause>>,
    /// Observers, each with its rank: ranks that are threads share this state.
    observers: Vec<(usize, Arc<Observer>)>,
    /// The latest operations in which ranks waited and which observers were told about.
    stalls: VecDeque<(String, u64)>,
    /// Refused connections, each with the rank at whose port they came.
    refused: Vec<(usize, Arc<Refused>)>,
}

impl State {
    fn observers_of(&self, rank: usize) -> Vec<Arc<Observer>> {
        self.observers.iter().filter(|(of, _)| *of == rank).map(|(_, observer)| observer.clone()).collect()
    }
}

impl Failure {
    /// From now on proposals go through `relay`. Without a relay the first proposal is the decision.
    pub(crate) fn set_relay(&self, relay: Arc<dyn Relay>) {
        // Set once, by the constructor of the group.
        let _ = self.relay.set(relay);
    }

    /// From now on causes that name a rank also name its machine, by this table of the job's ranks.
    pub(crate) fn set_hosts(&self, hosts: Vec<String>) {
        // Set once, when the job's group is formed.
        let _ = self.hosts.set(hosts);
    }

    /// The machine of a rank of the job, once all have met.
    pub(crate) fn host(&self, rank: usize) -> Option<&str> {
        Some(self.hosts.get()?.get(rank)?)
    }

    /// The cause, with the machine of the rank that it names.
    pub(crate) fn placed(&self, mut cause: Cause) -> Cause {
        let host = cause.rank.and_then(|rank| self.host(rank));
        if let (Some(host), true) = (host, cause.host.is_empty()) {
            cause.host = host.to_owned();
        }
        cause
    }

    /// Whether the group has failed: one atomic load.
    #[inline]
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Stops this rank, and proposes `cause` unless something was proposed or decided before.
    pub(crate) fn raise(&self, cause: Cause) {
        let cause = Arc::new(self.placed(cause));
        {
            let mut state = lock(&self.state);
            if state.proposed.is_some() || state.decision.is_some() {
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

    /// Settles the group's decision; only the first one counts.
    pub(crate) fn settle(&self, cause: Arc<Cause>) {
        let mut state = lock(&self.state);
        if state.decision.is_some() {
            return;
        }
        state.decision = Some(cause.clone());
        self.stopping.store(true, Ordering::Release);
        self.settled.notify_all();
        let observers = state.observers.iter().map(|(_, observer)| observer.clone()).collect();
        drop(state);
        self.tell(observers, GroupEvent::Failed(cause));
    }

    /// Registers an observer of the events that concern `rank`. It is called at once if connections were refused before, or
    /// the group has already failed.
    pub(crate) fn observe(&self, rank: usize, observer: Arc<Observer>) {
        let mut state = lock(&self.state);
        let refused = state.refused.iter().filter(|(of, _)| *of == rank).map(|(_, refused)| refused.clone());
        let mut events: Vec<_> = refused.map(GroupEvent::Refused).collect();
        match state.decision.clone() {
            None => state.observers.push((rank, observer.clone())),
            Some(cause) => events.push(GroupEvent::Failed(cause)),
        }
        drop(state);
        events.iter().for_each(|event| call(&observer, event));
    }

    /// Tells the observers of `rank`, those of later too, that its port has refused connections.
    pub(crate) fn refused(&self, rank: usize, refused: Refused) {
        let refused = Arc::new(refused);
        let mut state = lock(&self.state);
        if state.refused.len() < REFUSED_KEPT {
            state.refused.push((rank, refused.clone()));
        }
        let observers = state.observers_of(rank);
        drop(state);
        self.tell(observers, GroupEvent::Refused(refused));
    }

    /// Reports to rank 0 that this rank waits.
    pub(crate) fn warn(&self, stall: Cause) {
        let stall = Arc::new(self.placed(stall));
        match self.relay.get() {
            Some(relay) => relay.warn(stall),
            None => self.stalled(stall),
        }
    }

    /// Asks rank 0 who has joined an operation of another library. `None` where ranks are threads, too.
    pub(crate) fn arrivals(&self, question: Question) -> Option<Arrivals> {
        self.relay.get()?.arrivals(question)
    }

    /// Tells the observers of rank 0. This state is rank 0's, or shared with it.
    pub(crate) fn stalled(&self, stall: Arc<Cause>) {
        let mut state = lock(&self.state);
        // Several ranks may wait in one operation, and report it.
        let operation = (stall.operation.clone(), stall.sequence);
        if state.stalls.contains(&operation) {
            return;
        }
        state.stalls.truncate(STALLS_KEPT - 1);
        state.stalls.push_front(operation);
        let observers = state.observers_of(0);
        drop(state);
        self.tell(observers, GroupEvent::Stalled(stall));
    }

    /// Logs an event and calls observers from a thread of its own: they may print to a terminal that takes nothing, or write to a
    /// disk that hangs, and the calling thread keeps the group alive. Events are told in order.
    fn tell(&self, mut observers: Vec<Arc<Observer>>, event: GroupEvent) {
        if log::log_enabled!(log::Level::Error) {
            observers.push(Arc::new(GroupEvent::log));
        }
        if observers.is_empty() {
            return;
        }
        let mut telling = lock(&self.telling);
        let earlier = telling.take();
        let tell = Arc::new(move || observers.iter().for_each(|observer| call(observer, &event)));
        let (told, latest) = channel::<()>();
        let thread = std::thread::Builder::new().name("enmasse-observer".into()).spawn({
            let tell = tell.clone();
            move || {
                // This wait has no deadline, but nobody waits for this thread without one.
                let _ = earlier.map(|earlier| earlier.recv());
                tell();
                drop(told);
            }
        });
        match thread {
            Ok(_) => *telling = Some(latest),
            // The machine has no thread left, and the event must not be lost.
            Err(_) => tell(),
        }
    }

    /// Waits until observers have been told of every event so far, for at most `limit`: one may hang.
    pub(crate) fn wait_for_observers(&self, limit: Duration) {
        let latest = lock(&self.telling).take();
        // Both errors end the wait: the channel is closed, or it is late.
        let _ = latest.map(|latest| latest.recv_timeout(limit));
    }

    /// The cause of the failure, if the group has failed. May wait for the decision, up to a second after the proposal.
    pub(crate) fn cause(&self) -> Option<Arc<Cause>> {
        let mut state = lock(&self.state);
        loop {
            if let Some(decision) = &state.decision {
                return Some(decision.clone());
            }
            let (proposed, since) = state.proposed.clone()?;
            let left = DECISION_DEADLINE.saturating_sub(since.elapsed());
            if left.is_zero() {
                drop(state);
                self.settle(proposed);
                state = lock(&self.state);
            } else {
                state = wait_for(&self.settled, state, left);
            }
        }
    }

    /// An error with the cause when the group has failed.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Arc<Cause>> {
        if self.is_stopping() { self.cause().map_or(Ok(()), Err) } else { Ok(()) }
    }

    /// Waits for a decision from elsewhere, such as the server's about a peer whose connection just broke. True if the
    /// group fails within `limit`.
    pub(crate) fn fails_within(&self, limit: Duration) -> bool {
        let is_open = |state: &mut State| state.decision.is_none() && state.proposed.is_none();
        !is_open(&mut wait_while(&self.settled, lock(&self.state), limit, is_open))
    }
}

/// A panicking observer must not keep others from being told.
fn call(observer: &Arc<Observer>, event: &GroupEvent) {
    let _ = catch_unwind(AssertUnwindSafe(|| observer(event)));
}

#[cfg(test)]
mod tests {
    use test_support::logged;

    use super::*;
    use crate::cause::CauseKind;

    const LIMIT: Duration = Duration::from_secs(60);

    fn cause(message: &str) -> Cause {
        Cause::new(CauseKind::Error, message)
    }

    struct Nowhere;

    impl Relay for Nowhere {
        fn propose(&self, _: &Arc<Cause>) {}
        fn warn(&self, _: Arc<Cause>) {}
        fn arrivals(&self, _: Question) -> Option<Arrivals> {
            None
        }
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
    fn the_decision_overrules_the_own_proposal() {
        let failure = Failure::default();
        failure.set_relay(Arc::new(Nowhere));
        failure.raise(cause("own"));
        assert!(failure.is_stopping());
        failure.settle(Arc::new(cause("decision")));
        assert_eq!(failure.cause().unwrap().message, "decision");
    }

    #[test]
    fn observers_are_told_the_decision_once() {
        let failure = Failure::default();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let observer = |name: &'static str| -> Arc<Observer> {
            let heard = heard.clone();
            Arc::new(move |event: &GroupEvent| match event {
                GroupEvent::Failed(cause) => heard.lock().unwrap().push(format!("{name}: {}", cause.message)),
                GroupEvent::Stalled(stall) => heard.lock().unwrap().push(format!("{name} waits: {}", stall.message)),
                GroupEvent::Refused(refused) => heard.lock().unwrap().push(format!("{name}: {refused}")),
            })
        };
        failure.observe(0, observer("before"));
        failure.observe(1, Arc::new(|_| panic!("an observer may panic")));
        failure.warn(cause("it has not come"));
        failure.raise(cause("first"));
        failure.settle(Arc::new(cause("second")));
        failure.wait_for_observers(LIMIT);
        failure.observe(0, observer("after"));
        assert_eq!(*heard.lock().unwrap(), ["before waits: it has not come", "before: first", "after: first"]);
    }

    #[test]
    fn events_are_logged_once() {
        logged("");
        let failure = Failure::default();
        failure.observe(0, Arc::new(|_| {}));
        failure.warn(cause("a logged stall"));
        failure.raise(cause("a logged failure"));
        failure.wait_for_observers(LIMIT);
        let check = |text: &str, expected: &str| {
            let lines = logged(text);
            assert!(lines.len() == 1 && lines[0].starts_with(expected), "{lines:?}");
        };
        check("a logged stall", "WARN enmasse_comm::failure: ");
        check("a logged failure", "ERROR enmasse_comm::failure: ");
    }

    #[test]
    fn an_observer_that_hangs_delays_nobody_else() {
        let failure = Failure::default();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let (sender, heard) = std::sync::mpsc::channel();
        let (held, sender) = (Mutex::new(held), Mutex::new(sender));
        failure.observe(
            0,
            Arc::new(move |event: &GroupEvent| {
                let is_stall = matches!(event, GroupEvent::Stalled(_));
                sender.lock().unwrap().send(is_stall).unwrap();
                // Until the test lets it go.
                let _ = held.lock().unwrap().recv();
            }),
        );
        failure.warn(cause("it has not come"));
        assert!(heard.recv_timeout(LIMIT).unwrap());
        failure.raise(cause("first"));
        assert_eq!(failure.cause().unwrap().message, "first");
        // A group whose observer hung could not be dropped. Here it still hangs.
        failure.wait_for_observers(Duration::from_millis(10));
        assert_eq!(heard.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty));
        drop(release);
        assert!(!heard.recv_timeout(LIMIT).unwrap());
    }

    #[test]
    fn without_a_decision_the_own_proposal_holds() {
        let failure = Failure::default();
        failure.set_relay(Arc::new(Nowhere));
        failure.raise(cause("own"));
        assert_eq!(failure.cause().unwrap().message, "own");
    }
}
