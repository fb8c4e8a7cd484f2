//! Accepts connections in such a way that strangers without the token cannot keep ranks out.
//!
//! One thread takes all unproven connections of a port through their handshake, as their bytes
//! arrive. Their number, their memory and their time are limited. When one more arrives, what the
//! others have sent is read first; then one of them makes room, drawn at random and if possible
//! among those that have said nothing. A rank can be that one, and tries again: a flood delays it.
//!
//! Connections that are sent away are counted ([`Refused`]), for `GroupEvent::Refused` and for the
//! error that names missing ranks.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::handshake::{HandshakeError, Introduction, Reception, answer};
use super::link::Link;
use super::refused::{Reason, Refused};
use crate::error::{files_limit, refused};
use crate::locks::lock;
use crate::token::{Token, random};

/// Limit of connections that are proving the token at the same time, in addition to one for each expected rank.
const PENDING: usize = 64;
/// Time limit of one proof.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Connections that the kernel keeps until they are accepted, if its own limit is not lower. Where they are too few,
/// it drops the packets of ranks, which try again only after a second.
const BACKLOG: i32 = 4096;

/// Decides on connections that have proved the token.
pub(crate) trait Door: Send + Sync {
    /// Handles a connection; the introduction has not been answered yet. Runs in the connection's own thread.
    fn admit(&self, link: Link, introduction: Introduction);

    /// This process lacks a thread for a connection, which has been told why, or a descriptor for those that come.
    fn has_no_room(&self, _refusal: io::Error) {}
}

impl<F: Fn(Link, Introduction) + Send + Sync> Door for F {
    fn admit(&self, link: Link, introduction: Introduction) {
        self(link, introduction);
    }
}

/// A listening socket with its thread. Dropping it closes the socket; accepted connections stay open.
pub(crate) struct Acceptor {
    pub address: SocketAddr,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    /// The connections that have been refused so far.
    pub refusals: Arc<Refusals>,
}

impl Acceptor {
    /// Accepts connections, of about `expected` ranks at a time.
    pub(crate) fn start(listener: TcpListener, token: Token, expected: usize, door: Arc<dyn Door>) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        rustix::net::listen(&listener, BACKLOG)?;
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let refusals = Arc::new(Refusals(Mutex::new(Refused::new(address))));
        let lobby = Lobby::new(expected, refusals.clone())?;
        let thread = std::thread::Builder::new().name("enmasse-accept".into()).spawn({
            let wake = wake.clone();
            move || serve(&listener, &wake, lobby, &token, &door)
        })?;
        Ok(Acceptor { address, wake, thread: Some(thread), refusals })
    }

    /// Closes the socket. The counts no longer change then.
    pub(crate) fn close(mut self) -> Option<Refused> {
        self.stop();
        self.refusals.so_far()
    }

    fn stop(&mut self) {
        // An event counter accepts any number below its maximum.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // It ends soon: it waits for nothing but this word, and blocks on no connection.
            let _ = thread.join();
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The connections that a port has refused so far.
pub(crate) struct Refusals(Mutex<Refused>);

impl Refusals {
    /// `None` if there were none.
    pub(crate) fn so_far(&self) -> Option<Refused> {
        let refused = lock(&self.0);
        (refused.connections() > 0).then(|| refused.clone())
    }

    fn count(&self, from: IpAddr, reason: Reason) {
        lock(&self.0).count(from, reason);
    }
}

/// Connections that have not proved the token yet.
struct Lobby {
    room: usize,
    waiting: Vec<Waiting>,
    /// State of the random numbers that choose who makes room.
    draws: u64,
    refusals: Arc<Refusals>,
}

struct Waiting {
    until: Instant,
    from: IpAddr,
    reception: Reception,
}

impl Lobby {
    fn new(expected: usize, refusals: Arc<Refusals>) -> io::Result<Self> {
        let [a, b, c, d, e, f, g, h, ..] = random()?;
        let draws = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        Ok(Lobby { room: PENDING + expected, waiting: vec![], draws, refusals })
    }

    /// Lets a connection in. Where there is no room, another one goes, if possible one that has not said hello: a rank
    /// does that at once.
    fn enter(&mut self, stream: TcpStream, from: IpAddr) {
        // A connection that cannot be kept is dropped; a rank tries again.
        let Ok(reception) = Reception::new(stream) else { return };
        if self.waiting.len() >= self.room {
            let silent: Vec<_> = (0..self.waiting.len()).filter(|&i| !self.waiting[i].reception.is_greeted()).collect();
            let draw = self.draw();
            let place = match silent.len() {
                0 => draw % self.waiting.len(),
                count => silent[draw % count],
            };
            self.refusals.count(self.waiting[place].from, Reason::Crowded);
            self.waiting.swap_remove(place);
        }
        self.waiting.push(Waiting { until: Instant::now() + HANDSHAKE, from, reception });
    }

    fn draw(&mut self) -> usize {
        // Knuth's generator. The low bits are the least random ones.
        self.draws = self.draws.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.draws >> 33) as usize
    }

    /// Waits for bytes of a connection, a new connection or the word to stop, and until the first connection is late.
    /// Takes each connection as far as its bytes go.
    fn attend(&mut self, listener: &TcpListener, wake: &OwnedFd, token: &Token) -> Result<Event, Errno> {
        let first = self.waiting.iter().map(|one| one.until).min();
        let left = first.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        let streams = self.waiting.iter().map(|one| PollFd::new(one.reception.stream(), PollFlags::IN));
        let mut polled: Vec<_> = [PollFd::new(listener, PollFlags::IN), PollFd::new(wake, PollFlags::IN)]
            .into_iter()
            .chain(streams)
            .collect();
        // Without connections this wait has no deadline, but an owner: dropping the acceptor ends it.
        poll(&mut polled, left.as_ref())?;
        let mut ready = polled.iter().map(|one| !one.revents().is_empty()).collect::<Vec<_>>().into_iter();
        drop(polled);
        let [calls, stops] = [ready.next(), ready.next()].map(|ready| ready == Some(true));
        let mut proved = vec![];
        let now = Instant::now();
        for mut one in std::mem::take(&mut self.waiting) {
            let advanced = if ready.next() == Some(true) { one.reception.advance(token) } else { Ok(false) };
            match advanced {
                Ok(true) => proved.push((one.reception, one.from)),
                Ok(false) if now < one.until => self.waiting.push(one),
                Ok(false) => self.refusals.count(one.from, Reason::Late),
                Err(error) => self.refuse(one.from, &error, one.reception.is_greeted()),
            }
        }
        Ok(Event { calls, stops, proved })
    }

    fn refuse(&self, from: IpAddr, error: &HandshakeError, is_greeted: bool) {
        if let Some(reason) = reason_of(error, is_greeted) {
            self.refusals.count(from, reason);
        }
    }
}

struct Event {
    /// A new connection can be accepted.
    calls: bool,
    stops: bool,
    /// Connections whose introduction and proof are complete.
    proved: Vec<(Reception, IpAddr)>,
}

fn serve(listener: &TcpListener, wake: &OwnedFd, mut lobby: Lobby, token: &Token, door: &Arc<dyn Door>) {
    loop {
        let event = match lobby.attend(listener, wake, token) {
            Ok(event) => event,
            Err(Errno::INTR) => continue,
            Err(_) => return,
        };
        if event.stops {
            return;
        }
        for (reception, from) in event.proved {
            match reception.end(token, HANDSHAKE) {
                Ok((link, introduction)) => admit(door, link, introduction),
                Err(error) => lobby.refuse(from, &error, true),
            }
        }
        // One at a time, so that a rank is not sent away while its bytes wait to be read.
        if event.calls {
            match listener.accept() {
                Ok((stream, from)) => lobby.enter(stream, from.ip()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    // Those that wait here become ranks, or leave soon. Without them nothing gives a descriptor back.
                    if files_limit(&error).is_some() && lobby.waiting.is_empty() {
                        door.has_no_room(error);
                    }
                    // The connection may be gone again. A short pause keeps this loop from spinning.
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }
}

/// Hands over a connection in a thread of its own.
fn admit(door: &Arc<dyn Door>, link: Link, introduction: Introduction) {
    // A closure that gets no thread is lost, but not what it shares.
    let visit = Arc::new(Mutex::new(Some((link, introduction))));
    let take = |visit: &Mutex<Option<_>>| lock(visit).take();
    let hand_over = {
        let (door, visit) = (door.clone(), visit.clone());
        move || {
            if let Some((link, introduction)) = take(&visit) {
                door.admit(link, introduction);
            }
        }
    };
    let thread = std::thread::Builder::new().name("enmasse-admit".into()).spawn(hand_over);
    if let Err(source) = thread
        && let Some((link, _)) = take(&visit)
    {
        let _ = answer(&link, Some(&refused(&source)));
        door.has_no_room(source);
    }
}

/// The reason for a handshake that failed. `None` for a connection that its own side has ended before it said hello, as
/// a probe of the port does.
fn reason_of(error: &HandshakeError, is_greeted: bool) -> Option<Reason> {
    match error {
        HandshakeError::Token => Some(Reason::Token),
        HandshakeError::Version(_) => Some(Reason::Version),
        HandshakeError::Io(error) if error.kind() == io::ErrorKind::InvalidData => Some(Reason::Program),
        HandshakeError::Io(_) => is_greeted.then_some(Reason::Token),
        HandshakeError::Refused(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::handshake::{Purpose, hello, introduce};
    use crate::operation::Identity;
    use std::io::{Read, Write};
    use std::sync::mpsc::{Receiver, channel};

    const LIMIT: Duration = Duration::from_secs(60);

    /// An acceptor, its token, and the ranks that it admits.
    fn open() -> (Acceptor, Token, Receiver<Introduction>) {
        let (sender, receiver) = channel();
        let token = Token::generate().unwrap();
        let door = Arc::new(move |link: Link, who| {
            answer(&link, None).unwrap();
            sender.send(who).unwrap();
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        (Acceptor::start(listener, token.clone(), 2, door).unwrap(), token, receiver)
    }

    #[test]
    fn strangers_cannot_block_ranks() {
        let (acceptor, token, receiver) = open();
        let strangers: Vec<_> = (0..2 * PENDING).map(|_| TcpStream::connect(acceptor.address).unwrap()).collect();
        let stream = TcpStream::connect(acceptor.address).unwrap();
        let identity = Identity::default();
        let host = "h".to_owned();
        let who = Introduction { purpose: Purpose::Data, rank: 1, target: 0, world_size: 2, identity, host };
        introduce(stream, &token, &who, LIMIT).unwrap();
        assert_eq!(receiver.recv_timeout(LIMIT).unwrap(), who);
        drop(acceptor);
        drop(strangers);
    }

    #[test]
    fn connections_that_had_proved_the_token_were_dropped() {
        let (acceptor, token, receiver) = open();
        for attempt in 0..200 {
            let stream = TcpStream::connect(acceptor.address).unwrap();
            let identity = Identity { attempt, ..Identity::default() };
            let purpose = Purpose::Data;
            let host = "h".to_owned();
            let who = Introduction { purpose, rank: 1, target: 0, world_size: 2, identity, host };
            introduce(stream, &token, &who, LIMIT).unwrap();
            assert_eq!(receiver.recv_timeout(LIMIT).unwrap(), who);
        }
    }

    fn introduction() -> Introduction {
        let identity = Identity::default();
        let host = "h".to_owned();
        Introduction { purpose: Purpose::Data, rank: 1, target: 0, world_size: 2, identity, host }
    }

    /// What the port says of those that connect, say `said` and no more, and of ranks with tokens.
    fn check_refused(said: &[&[u8]], ranks: &[Option<Token>], expected: Option<&str>) {
        let (acceptor, token, receiver) = open();
        let address = acceptor.address;
        for bytes in said {
            let mut stranger = TcpStream::connect(address).unwrap();
            stranger.set_read_timeout(Some(LIMIT)).unwrap();
            stranger.write_all(bytes).unwrap();
            // A reset is equivalent to an end of file.
            let _ = stranger.shutdown(std::net::Shutdown::Write);
            let _ = stranger.read_to_end(&mut vec![]);
        }
        for other in ranks {
            let stream = TcpStream::connect(address).unwrap();
            let introduced = introduce(stream, other.as_ref().unwrap_or(&token), &introduction(), LIMIT);
            assert_eq!(introduced.is_ok(), other.is_none());
            assert!(other.is_some() || receiver.recv_timeout(LIMIT).is_ok());
        }
        // Connections are taken in turn, so those before this one have been refused once it is admitted.
        introduce(TcpStream::connect(address).unwrap(), &token, &introduction(), LIMIT).unwrap();
        receiver.recv_timeout(LIMIT).unwrap();
        let refused = acceptor.close().map(|refused| refused.to_string());
        assert_eq!(refused, expected.map(|expected| format!("refused at {address}: {expected}")));
    }

    #[test]
    fn refused_connections_were_dropped_without_a_word() {
        let greeting = hello(&[1; 32]);
        let after_hello = |rest: &[u8]| [&greeting[..], rest].concat();
        let own = introduction().to_bytes();
        let stolen = [0; 32];
        let length = (own.len() as u16).to_le_bytes();
        let wrong_proof = after_hello(&[&length[..], &own, &stolen].concat());
        let mut newer = greeting.clone();
        newer[7] += 1;

        check_refused(&[], &[], None);
        check_refused(&[], &[None, None], None);
        // A probe of the port, which its own side ends.
        check_refused(&[b""], &[], None);
        check_refused(&[b"enm"], &[], None);
        let token = "1 connection from 127.0.0.1, without the token of this run";
        check_refused(&[&greeting], &[], Some(token));
        check_refused(&[&wrong_proof], &[], Some(token));
        check_refused(&[], &[Some(Token::generate().unwrap())], Some(token));
        let program = "1 connection from 127.0.0.1, of another program";
        check_refused(&[b"GET / HTTP/1.1\r\n\r\n"], &[], Some(program));
        check_refused(&[b"x"], &[], Some(program));
        check_refused(&[&after_hello(&[0xff; 2])], &[], Some(program));
        check_refused(&[&newer], &[], Some("1 connection from 127.0.0.1, of another version of enmasse"));
        check_refused(
            &[b"x", &greeting, b"", &wrong_proof, b"x"],
            &[Some(Token::generate().unwrap()), None],
            Some(
                "3 connections from 127.0.0.1, without the token of this run; 2 connections from 127.0.0.1, of another program",
            ),
        );
    }

    #[test]
    fn connections_without_a_proof_in_time_are_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let refusals = Arc::new(Refusals(Mutex::new(Refused::new(address))));
        let mut lobby = Lobby::new(2, refusals.clone()).unwrap();
        let _silent = TcpStream::connect(address).unwrap();
        let (stream, from) = listener.accept().unwrap();
        lobby.enter(stream, from.ip());
        lobby.waiting[0].until = Instant::now();
        let wake = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        lobby.attend(&listener, &wake, &Token::from_bytes([1; 32])).unwrap();
        let expected =
            format!("refused at {address}: 1 connection from 127.0.0.1, without a proof of the token in time");
        assert_eq!(refusals.so_far().map(|refused| refused.to_string()), Some(expected));
    }

    /// A rank that had said hello was the oldest connection once 64 strangers had come, and was closed.
    #[test]
    fn silent_strangers_evicted_a_rank_that_had_said_hello() {
        let (acceptor, _, _receiver) = open();
        let mut rank = TcpStream::connect(acceptor.address).unwrap();
        rank.set_read_timeout(Some(LIMIT)).unwrap();
        rank.write_all(&hello(&[1; 32])).unwrap();
        let mut heard = [0; 73];
        rank.read_exact(&mut heard).unwrap();
        let mut strangers: Vec<_> = (0..4 * PENDING).map(|_| TcpStream::connect(acceptor.address).unwrap()).collect();
        // The last one knows that all before it were accepted.
        let mut last = strangers.pop().unwrap();
        last.set_read_timeout(Some(LIMIT)).unwrap();
        last.write_all(&hello(&[2; 32])).unwrap();
        last.read_exact(&mut heard).unwrap();
        let open = |stream: &mut TcpStream| {
            stream.set_nonblocking(true).unwrap();
            stream.read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        assert!(open(&mut rank));
        let left = strangers.iter_mut().filter_map(|stranger| open(stranger).then_some(())).count();
        assert!(left <= PENDING + 2, "{left} strangers");
        // The rank is the one more.
        let address = acceptor.address;
        let sent_away = 4 * PENDING + 1 - (PENDING + 2);
        let expected = format!("refused at {address}: {sent_away} connections from 127.0.0.1, to make room for others");
        assert_eq!(acceptor.refusals.so_far().map(|refused| refused.to_string()), Some(expected));
    }
}
