//! Rank 0's server: admits ranks, keeps the store, watches every rank, and decides which cause was the first.

use std::collections::HashMap;
use std::io;
use std::net::TcpListener;
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::arrivals::{Arrivals, Question};
use crate::cause::{Cause, CauseKind};
use crate::control::{ANSWER, DECISION, LINGER, Line, Message};
use crate::error::{JoinError, refused};
use crate::failure::{Failure, Relay};
use crate::flight::{FlightRecorder, Standing};
use crate::locks::{lock, wait_while};
use crate::net::acceptor::{Acceptor, Door, Refusals};
use crate::net::handshake::{Introduction, Purpose, answer};
use crate::net::link::Link;
use crate::net::record::Altered;
use crate::net::refused::Refused;
use crate::operation::Identity;
use crate::store::{Store, Values};
use crate::token::Token;

/// See the module's documentation. Dropping the server says goodbye to all ranks.
pub(crate) struct Server {
    server_state: Arc<ServerState>,
    acceptor: Option<Acceptor>,
}

/// State that the connections' threads share.
struct ServerState {
    world_size: usize,
    identity: Identity,
    heartbeat: Duration,
    store: Arc<Values>,
    /// Rank 0's own state, which receives the decision like every rank's.
    failure: Arc<Failure>,
    /// Rank 0's own recorder: no heartbeat reports its activity.
    recorder: FlightRecorder,
    seats: Mutex<Seats>,
    emptied: Condvar,
    /// Set once the acceptor has started.
    refusals: OnceLock<Arc<Refusals>>,
}

#[derive(Default)]
struct Seats {
    decision: Option<Arc<Cause>>,
    /// Control connections of the ranks that are connected; `None` for one that is being told that it is admitted.
    lines: HashMap<usize, Option<Arc<Line>>>,
    /// Long-lasting activities of ranks, by their latest heartbeats.
    standings: HashMap<usize, Standing>,
    /// Connections to the store that are open; closed along with the server.
    stores: Vec<Arc<Link>>,
    /// Ranks that have ever connected: each number is admitted only once.
    taken: Vec<usize>,
    closing: bool,
}

impl Server {
    /// Serves on `listener`.
    pub(crate) fn start(
        listener: TcpListener,
        token: Token,
        identity: Identity,
        world_size: usize,
        heartbeat: Duration,
        failure: &Arc<Failure>,
        recorder: &FlightRecorder,
    ) -> Result<Self, JoinError> {
        let server_state = Arc::new(ServerState {
            world_size,
            identity,
            heartbeat,
            store: Arc::new(Values::new(world_size)),
            failure: failure.clone(),
            recorder: recorder.clone(),
            seats: Mutex::default(),
            emptied: Condvar::new(),
            refusals: OnceLock::new(),
        });
        failure.set_relay(Arc::new(ToHall { server_state: Arc::downgrade(&server_state) }));
        allow_many_files();
        let acceptor = Acceptor::start(listener, token, world_size, server_state.clone()).map_err(JoinError::Thread)?;
        let _ = server_state.refusals.set(acceptor.refusals.clone());
        Ok(Server { server_state, acceptor: Some(acceptor) })
    }

    /// Rank 0's access to the store.
    pub(crate) fn store(&self) -> Store {
        Store::Here(self.server_state.store.clone(), 0)
    }

    /// The connections that have been refused so far.
    pub(crate) fn refusals(&self) -> Option<Arc<Refusals>> {
        self.server_state.refusals.get().cloned()
    }

    /// Stops listening, since every rank has joined. Returns the connections that have been refused.
    pub(crate) fn shut_the_door(&mut self) -> Option<Refused> {
        self.acceptor.take()?.close()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shut_the_door();
        self.server_state.store.end("rank 0 has left".into());
        let lines: Vec<_> = {
            let mut seats = lock(&self.server_state.seats);
            seats.closing = true;
            for link in seats.stores.drain(..) {
                // Data sent before still arrives; the rank closes in return.
                let _ = link.stream().shutdown(std::net::Shutdown::Both);
            }
            seats.lines.values().flatten().cloned().collect()
        };
        for line in &lines {
            line.close();
        }
        // The other ranks close in return. A rank that does not is stopped or hangs, which is no reason to wait long.
        let are_seated = |seats: &mut Seats| !seats.lines.is_empty();
        drop(wait_while(&self.server_state.emptied, lock(&self.server_state.seats), LINGER, are_seated));
    }
}

impl Door for ServerState {
    fn admit(&self, link: Link, who: Introduction) {
        let who = &who;
        let refusal = self.seat(who).err();
        let answered = answer(&link, refusal.as_deref());
        if refusal.is_some() {
            return;
        }
        if answered.is_err() {
            // The rank does not know that it was admitted, and comes again.
            if who.purpose == Purpose::Control {
                lock(&self.seats).taken.retain(|taken| *taken != who.rank);
                self.leave(who.rank);
            }
            return;
        }
        match who.purpose {
            Purpose::Store => {
                let link = Arc::new(link);
                lock(&self.seats).stores.push(link.clone());
                // The end of a store connection is not reported here: the control connection reports it.
                if let Err(error) = self.store.serve(&link, who.rank)
                    && let Some(cause) = Altered::cause(&error)
                {
                    self.decide(&Arc::new(cause));
                }
                lock(&self.seats).stores.retain(|other| !Arc::ptr_eq(other, &link));
            }
            Purpose::Control | Purpose::Data | Purpose::Agent => self.watch(link, who),
        }
    }

    /// A rank that has been refused cannot come back later, and one that waits to be accepted would wait for ever.
    fn has_no_room(&self, refusal: io::Error) {
        self.failure.raise(Cause::new(CauseKind::Error, refused(&refusal)).of_rank_here(0));
    }
}

impl ServerState {
    /// Admits a connection, or gives the reason to refuse it. A control connection takes its rank's seat, so that of two
    /// that arrive together one is refused.
    fn seat(&self, who: &Introduction) -> Result<(), String> {
        let Introduction { rank, world_size, host, identity, .. } = who;
        let mut seats = lock(&self.seats);
        if *identity != self.identity {
            let (ours, theirs) = (self.identity, identity);
            return Err(if ours.job != theirs.job {
                "it belongs to another job: are two jobs using one address?".to_owned()
            } else {
                format!("it belongs to attempt {}, and attempt {} is running", theirs.attempt, ours.attempt)
            });
        }
        if *world_size != self.world_size {
            return Err(format!(
                "rank {rank} on host {host} was started with a world size of {world_size}, rank 0 with {}",
                self.world_size
            ));
        }
        if *rank == 0 || *rank >= self.world_size {
            return Err(format!("rank {rank} on host {host} is not one of 1 to {}", self.world_size - 1));
        }
        if let Purpose::Data | Purpose::Agent = who.purpose {
            return Err("rank 0 accepts neither collectives' data nor agents at this address".to_owned());
        }
        if who.purpose == Purpose::Control && seats.taken.contains(rank) {
            return Err(format!("rank {rank} has joined already: was it started twice?"));
        }
        match &seats.decision {
            Some(cause) => return Err(format!("the group has failed: {cause}")),
            None if seats.closing => return Err("rank 0 is leaving".to_owned()),
            None => {}
        }
        if who.purpose == Purpose::Control {
            seats.taken.push(*rank);
            seats.lines.insert(*rank, None);
        }
        Ok(())
    }

    fn watch(&self, link: Link, who: &Introduction) {
        let Ok(line) = Line::new(link, self.heartbeat) else { return self.leave(who.rank) };
        let line = Arc::new(line);
        {
            let mut seats = lock(&self.seats);
            seats.lines.insert(who.rank, Some(line.clone()));
            if let Some(cause) = &seats.decision {
                let _ = line.send(DECISION, &cause.to_bytes());
            }
            // Rank 0 may have left since it admitted this one, which must hear of it in any case.
            if seats.closing {
                line.close();
            }
        }
        let end = line.listen(self.heartbeat, None, |message| match message {
            Message::Standing(Some(standing)) => drop(lock(&self.seats).standings.insert(who.rank, standing)),
            Message::Standing(None) => drop(lock(&self.seats).standings.remove(&who.rank)),
            Message::Raise(cause) => self.decide(&self.beside_refused(cause)),
            Message::Stall(stall) => self.failure.stalled(self.told_more(&stall)),
            Message::Question(question) => {
                // A rank that cannot be told is gone or hangs.
                let _ = line.send(ANSWER, &self.arrivals(question, who.rank).to_bytes(question));
            }
            Message::Decision(_) | Message::Answer(_) => {}
        });
        if let Some(cause) = end.cause(who.rank, &who.host) {
            self.decide(&Arc::new(cause));
        }
        line.shut();
        self.leave(who.rank);
    }

    fn leave(&self, rank: usize) {
        lock(&self.seats).lines.remove(&rank);
        self.emptied.notify_all();
    }

    /// Makes the first cause the decision for all ranks.
    fn decide(&self, cause: &Arc<Cause>) {
        let cause = &self.told_more(cause);
        let lines: Vec<_> = {
            let mut seats = lock(&self.seats);
            if seats.decision.is_some() {
                return;
            }
            seats.decision = Some(cause.clone());
            seats.lines.values().flatten().cloned().collect()
        };
        let bytes = cause.to_bytes();
        for line in lines {
            // A rank that cannot be told is gone or hangs; its own connection's thread notices that.
            let _ = line.send(DECISION, &bytes);
        }
        // Last, since this process may end as soon as rank 0 knows the decision.
        self.store.end(cause.to_string());
        self.failure.settle(cause.clone());
    }

    /// Adds the reported activity of the rank that the others wait for.
    fn told_more(&self, cause: &Arc<Cause>) -> Arc<Cause> {
        let late = cause.rank.filter(|_| cause.kind == CauseKind::Timeout);
        match late.and_then(|rank| self.standing(rank)) {
            Some(standing) => {
                let message = format!("{}; {standing}", cause.message);
                Arc::new(Cause { message, ..(**cause).clone() })
            }
            None => cause.clone(),
        }
    }

    /// Adds the connections that were refused here to the cause of a rank that has waited for others in vain: those may be
    /// the others.
    fn beside_refused(&self, cause: Arc<Cause>) -> Arc<Cause> {
        let is_forming = lock(&self.seats).taken.len() + 1 < self.world_size;
        let refused = self.refusals.get().filter(|_| is_forming && cause.rank.is_none()).and_then(|all| all.so_far());
        match refused {
            Some(refused) => Arc::new(Cause { message: format!("{} ({refused})", cause.message), ..(*cause).clone() }),
            None => cause,
        }
    }

    /// Who but `asking` has joined an operation of another library, by the latest heartbeats of ranks that reported.
    fn arrivals(&self, question: Question, asking: usize) -> Arrivals {
        let seats = lock(&self.seats);
        let others = seats.standings.iter().map(|(&rank, standing)| (rank, standing.begun(question.group)));
        let all = [(0, self.recorder.begun(question.group))].into_iter().chain(others);
        Arrivals::of(question, all.filter(|&(rank, _)| rank != asking).filter_map(|(rank, begun)| Some((rank, begun?))))
    }

    fn standing(&self, rank: usize) -> Option<Standing> {
        match rank {
            0 => self.recorder.standing(self.heartbeat),
            _ => lock(&self.seats).standings.get(&rank).cloned(),
        }
    }
}

/// Raises the limit of open files as far as this process may. Every rank takes two, and the usual limit of 1024 is meant for programs
/// that wait by `select`.
fn allow_many_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // If they are too few, the error is reported where one is missing.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Weak, since the hall holds the failure state.
struct ToHall {
    server_state: Weak<ServerState>,
}

impl Relay for ToHall {
    fn propose(&self, cause: &Arc<Cause>) {
        if let Some(server_state) = self.server_state.upgrade() {
            server_state.decide(cause);
        }
    }

    fn warn(&self, stall: Arc<Cause>) {
        if let Some(server_state) = self.server_state.upgrade() {
            server_state.failure.stalled(server_state.told_more(&stall));
        }
    }

    fn arrivals(&self, question: Question) -> Option<Arrivals> {
        Some(self.server_state.upgrade()?.arrivals(question, 0))
    }
}
