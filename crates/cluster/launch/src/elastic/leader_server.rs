//! The meeting place of agents: a [`Leader`] with its connections, at the rendezvous endpoint.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use enmasse_comm::{Channel, ChannelListener};

use super::leader::{Leader, LeaderAction, LeaderEvent, Rules};
use super::message::{receive, send};
use super::{Endpoint, Tell, Time};

/// How long a leader waits for the answer of another leader in its place.
const PROBE_LIMIT: Duration = Duration::from_secs(3);

/// A running leader. Dropping it closes all connections.
pub(super) struct LeaderServer {
    shared: Arc<Shared>,
    listener: Option<ChannelListener>,
    clock: Option<JoinHandle<()>>,
}

struct Shared {
    origin: Instant,
    tell: Tell,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    leader: Leader,
    channels: HashMap<u64, Arc<Channel>>,
    next_peer: u64,
    closing: bool,
}

impl LeaderServer {
    /// Opens the hall, if the endpoint is an address of this machine on which no other listens; otherwise `None`.
    pub(super) fn open(
        endpoint: &Endpoint,
        job: &str,
        rules: Rules,
        name: u64,
        tell: Tell,
    ) -> io::Result<Option<Self>> {
        let addresses = endpoint.addresses()?;
        let is_local_name =
            addresses.iter().all(|address| address.ip().is_loopback()) && !names_loopback(&endpoint.host);
        let bind = |address: &SocketAddr| match is_local_name {
            // This machine's own name may resolve to loopback here, and to the network elsewhere.
            true => TcpListener::bind(("0.0.0.0", endpoint.port)),
            false => TcpListener::bind(address),
        };
        let Some(listener) = addresses.iter().find_map(|address| bind(address).ok()) else { return Ok(None) };
        let origin = Instant::now();
        let leader = Leader::new(name, rules.clone(), Time::ZERO);
        let state = State { leader, channels: HashMap::new(), next_peer: 0, closing: false };
        let shared = Arc::new(Shared { origin, tell, state: Mutex::new(state), changed: Condvar::new() });
        let of_channels = shared.clone();
        let admit = move |channel| of_channels.serve(channel);
        let listener = ChannelListener::start(listener, endpoint.token.clone(), job, admit)?;
        let mut leader_server = LeaderServer { shared: shared.clone(), listener: Some(listener), clock: None };
        let spawn = |name: &str| std::thread::Builder::new().name(name.into());
        let of_clock = shared.clone();
        leader_server.clock = Some(spawn("enmasse-leader").spawn(move || of_clock.keep_time())?);
        let (endpoint, job) = (endpoint.clone(), job.to_owned());
        // Nobody waits for this thread: it resolves names, which has no deadline. It does nothing after the hall's end.
        spawn("enmasse-probe").spawn(move || shared.watch_for_rivals(&endpoint, &job, rules.timing.lease))?;
        Ok(Some(leader_server))
    }

    /// Ends the job, because this leader's own agent was told to stop.
    pub(super) fn shut_down(&self, signal: i32) {
        self.shared.handle(LeaderEvent::Shutdown { signal });
    }

    /// Whether this leader's work is over.
    pub(super) fn is_over(&self) -> bool {
        self.shared.state().leader.decision().is_some()
    }

    /// Waits, for at most `limit`, until all agents have been told how the job ended and have disconnected.
    pub(super) fn linger(&self, limit: Duration) {
        let stays = |state: &mut State| state.leader.has_peers() && state.leader.decision().is_some();
        // Whether the limit has passed makes no difference.
        let _ = self.shared.changed.wait_timeout_while(self.shared.state(), limit, stays);
    }
}

impl Drop for LeaderServer {
    fn drop(&mut self) {
        let refused = self.listener.take().and_then(ChannelListener::close);
        // Where too few agents came, the others may be among these.
        refused.into_iter().for_each(|refused| (self.shared.tell)(&refused.to_string()));
        {
            let mut state = self.shared.state();
            state.closing = true;
            state.channels.values().for_each(|channel| channel.close());
        }
        self.shared.changed.notify_all();
        if let Some(clock) = self.clock.take() {
            // It ends soon: a message that it still sends has a deadline.
            let _ = clock.join();
        }
    }
}

impl Shared {
    /// Every change is complete when the lock is released, even by a panic.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread of one connection.
    fn serve(&self, channel: Channel) {
        let Ok(address) = channel.peer() else { return };
        let channel = Arc::new(channel);
        let address = address.to_string();
        let peer = {
            let mut state = self.state();
            if state.closing {
                return;
            }
            state.next_peer += 1;
            let peer = state.next_peer;
            state.channels.insert(peer, channel.clone());
            peer
        };
        while let Some(message) = receive(&channel) {
            self.handle(LeaderEvent::Message { peer, address: address.clone(), message });
        }
        channel.close();
        self.state().channels.remove(&peer);
        self.handle(LeaderEvent::Closed { peer });
    }

    fn handle(&self, event: LeaderEvent) {
        let mut guard = self.state();
        let state = &mut *guard;
        if state.closing {
            return;
        }
        for action in state.leader.handle(self.origin.elapsed(), event) {
            match action {
                LeaderAction::Send { peer, message } => {
                    state.channels.get(&peer).into_iter().for_each(|channel| send(channel, &message));
                }
                LeaderAction::Close { peer } => {
                    state.channels.remove(&peer).into_iter().for_each(|channel| channel.close());
                }
                LeaderAction::Say(text) => (self.tell)(&text),
            }
        }
        drop(guard);
        self.changed.notify_all();
    }

    /// The thread that wakes the leader at its deadlines.
    fn keep_time(&self) {
        let mut state = self.state();
        while !state.closing {
            let now = self.origin.elapsed();
            let deadline = state.leader.deadline(now);
            // This wait has no deadline, but an owner: every event wakes this thread.
            let left = deadline.map_or(Duration::from_secs(3600), |deadline| deadline.saturating_sub(now));
            let (woken, timeout) = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            if timeout.timed_out() && !state.closing {
                drop(state);
                self.handle(LeaderEvent::Tick);
                state = self.state();
            }
        }
    }

    /// The thread that checks whether the endpoint still leads here.
    fn watch_for_rivals(&self, endpoint: &Endpoint, job: &str, pause: Duration) {
        loop {
            let waited = self.changed.wait_timeout_while(self.state(), pause, |state| !state.closing);
            if waited.unwrap_or_else(PoisonError::into_inner).0.closing {
                return;
            }
            let Ok(addresses) = endpoint.addresses() else { continue };
            if addresses.iter().any(|address| is_own(address.ip())) {
                continue;
            }
            let answers = |address| Channel::connect(address, &endpoint.token, job, PROBE_LIMIT).is_ok();
            if addresses.into_iter().any(answers) {
                self.handle(LeaderEvent::Rival);
                return;
            }
        }
    }
}

/// Whether an address belongs to this machine: only then can a socket be bound to it.
fn is_own(address: IpAddr) -> bool {
    TcpListener::bind((address, 0)).is_ok()
}

/// As users write it.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Endpoint {
    /// The addresses to which the host's name resolves now.
    pub(super) fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        let bare = self.host.trim_start_matches('[').trim_end_matches(']');
        Ok((bare, self.port).to_socket_addrs()?.collect())
    }
}

/// Whether a host's name itself means only this machine.
pub(super) fn names_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use enmasse_comm::Token;
    use std::sync::mpsc::channel;

    const LIMIT: Duration = Duration::from_secs(60);

    /// What the leader says when it stops listening, after connections with these tokens.
    fn check(tokens: &[u8], expected: &[&str]) {
        let host = "127.0.0.1".to_owned();
        let port = test_support::free_port();
        let endpoint = Endpoint { host, port, token: Token::from_bytes([7; 32]) };
        let timing = super::super::Timing::default();
        let rules =
            Rules { least: 2, most: 2, max_restarts: 0, timing, endpoint_host: endpoint.host.clone(), agent: 1 };
        let (sender, said) = channel();
        let tell = Arc::new(move |line: &str| sender.send(line.to_owned()).unwrap());
        let leader_server = LeaderServer::open(&endpoint, "job", rules, 1, tell).unwrap().expect("a free port");
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        for &byte in tokens {
            let connected = Channel::connect(address, &Token::from_bytes([byte; 32]), "job", LIMIT);
            let refused = connected.err().map(|error| error.to_string());
            assert_eq!(refused.is_some_and(|why| why.contains("holds another token")), byte != 7);
        }
        // Connections are taken in turn, so those before this one have been refused once it is admitted.
        Channel::connect(address, &endpoint.token, "job", LIMIT).unwrap();
        drop(leader_server);
        let expected: Vec<_> = expected.iter().map(|line| format!("refused at {address}: {line}")).collect();
        assert_eq!(said.try_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn refused_strangers_were_not_told_when_the_leader_stopped_listening() {
        check(&[], &[]);
        check(&[7, 7], &[]);
        check(&[8], &["1 connection from 127.0.0.1, without the token of this run"]);
        check(&[8, 7, 9], &["2 connections from 127.0.0.1, without the token of this run"]);
    }
}
