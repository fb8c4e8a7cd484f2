//! Ranks form a group and run while strangers connect to every port of theirs, without end. (A separate program, because
//! memory is counted for all threads, and because strangers come to all ports of the process.)

#[path = "suite/common/mod.rs"]
mod common;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{DEADLINE, join_all, rendezvous, run_ranks};
use enmasse_comm::{GroupEvent, Rendezvous, TransportChoice};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use test_support::heap::peak_of_all_threads;

const RANKS: usize = 64;
const STRANGERS: usize = 500;
/// Strangers that stay until they are sent away.
const PATIENT: usize = 100;
/// Connections without which nothing goes on: fewer than the kernel keeps for a port that nobody accepts at.
const WAVE: usize = 100;
/// Connections after which a thread looks for new ports.
const LOOK: usize = 500;
/// Threads of the others, which come one after another.
const CROWDS: usize = 4;
const MANNERS: [Manner; 4] = [Manner::Silent, Manner::Slow, Manner::Garbage, Manner::Polite];
/// Two ends of a connection between every two ranks, and all others.
const DESCRIPTORS: u64 = 8192;
/// What an unproven connection may cost, and how many of them a port has room for.
const UNPROVEN: usize = 2048 * (64 + RANKS);

/// What all strangers know and have done.
#[derive(Default)]
struct Flood {
    /// The version of the protocol, as ranks tell it to everybody.
    version: AtomicU8,
    /// Connections tried so far. During the run no port of the ranks is open.
    tried: AtomicUsize,
    /// Connections so far.
    opened: AtomicUsize,
    is_wanted: AtomicBool,
    ends: AtomicBool,
}

/// What a stranger does once it is connected.
#[derive(Clone, Copy)]
enum Manner {
    Silent,
    /// Sends the bytes of a hello, one at a time.
    Slow,
    Garbage,
    /// Says hello, which needs no token, and then nothing.
    Polite,
}

struct Stranger {
    manner: Manner,
    stream: TcpStream,
    sent: usize,
}

impl Stranger {
    fn connect(manner: Manner, port: u16) -> Option<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream = TcpStream::connect_timeout(&address, Duration::from_millis(100)).ok()?;
        stream.set_nonblocking(true).ok()?;
        Some(Stranger { manner, stream, sent: 0 })
    }

    /// Does something; false once the connection has ended.
    fn act(&mut self, flood: &Flood) -> bool {
        let hello = [b"enmasse", &[flood.version.load(Ordering::Relaxed)][..], &[7; 32]].concat();
        let bytes = match self.manner {
            Manner::Silent => &[][..],
            Manner::Slow => hello.get(self.sent..=self.sent).unwrap_or_default(),
            Manner::Garbage => &[b'x'; 4096],
            Manner::Polite => hello.get(self.sent..).unwrap_or_default(),
        };
        if !bytes.is_empty() {
            self.sent += self.stream.write(bytes).unwrap_or(0);
        }
        let mut heard = [0; 8];
        match self.stream.read(&mut heard) {
            Ok(0) => false,
            Ok(count) => {
                if let (8, [b'e', .., version]) = (count, heard) {
                    flood.version.store(version, Ordering::Relaxed);
                }
                true
            }
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }
}

impl Flood {
    /// Waits until the strangers have done this so often.
    fn reaches(&self, count: &AtomicUsize, wanted: usize) {
        let deadline = Instant::now() + DEADLINE;
        while self.is_wanted.load(Ordering::Relaxed) && count.load(Ordering::Relaxed) < wanted {
            assert!(Instant::now() < deadline, "the strangers do not come");
            std::thread::yield_now();
        }
    }
}

/// The strangers of one thread.
struct Gang<'a> {
    flood: &'a Flood,
    /// The ports at which the ranks have listened so far, that of rank 0 first.
    ports: Vec<u16>,
    tries: usize,
}

impl Gang<'_> {
    /// One after another connects, says what it has to say, and takes the place of the one that has stayed longest.
    fn crowd(mut self, places: usize) {
        let mut crowd: VecDeque<Stranger> = VecDeque::new();
        while !self.flood.ends.load(Ordering::Relaxed) {
            let Some(mut stranger) = self.connect(MANNERS[self.tries % 4]) else { continue };
            stranger.act(self.flood);
            crowd.push_back(stranger);
            if crowd.len() > places {
                crowd.pop_front();
            }
        }
    }

    /// Each connects, does its worst, and connects again when it is sent away.
    fn besiege(mut self, places: usize) {
        let mut strangers: Vec<_> = (0..places).map(|number| (MANNERS[number % 4], None::<Stranger>)).collect();
        while !self.flood.ends.load(Ordering::Relaxed) {
            for (manner, place) in &mut strangers {
                if !place.as_mut().is_some_and(|stranger| stranger.act(self.flood)) {
                    *place = self.connect(*manner);
                }
            }
        }
    }

    /// A stranger at rank 0's port every other time, and otherwise at one port after another, many times each.
    fn connect(&mut self, manner: Manner) -> Option<Stranger> {
        if self.tries.is_multiple_of(LOOK) {
            let found = own_ports();
            self.ports.extend(found.into_iter().filter(|port| !self.ports.contains(port)).collect::<Vec<_>>());
        }
        self.tries += 1;
        let place = if self.tries.is_multiple_of(2) { 0 } else { self.tries / 200 % self.ports.len() };
        self.flood.tried.fetch_add(1, Ordering::Relaxed);
        let stranger = Stranger::connect(manner, self.ports[place])?;
        self.flood.opened.fetch_add(1, Ordering::Relaxed);
        Some(stranger)
    }
}

/// The ports on which this process listens. Reads line by line, since memory is counted here too.
fn own_ports() -> Vec<u16> {
    let listening = |line: String| {
        let mut words = line.split_ascii_whitespace();
        let port = words.nth(1)?.split_once(':')?.1;
        let is_listening = words.nth(1)? == "0A";
        let socket = format!("socket:[{}]", words.nth(5)?);
        is_listening.then_some((u16::from_str_radix(port, 16).ok()?, socket))
    };
    let table = BufReader::new(File::open("/proc/self/net/tcp").unwrap());
    let listening: Vec<_> = table.lines().map_while(Result::ok).filter_map(listening).collect();
    let own = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| {
        let link = std::fs::read_link(entry.ok()?.path()).ok()?;
        listening.iter().find(|(_, socket)| link.as_os_str() == socket.as_str()).map(|(port, _)| *port)
    });
    own.collect()
}

/// Forms a group in the flood and runs it; returns the greatest number of bytes held meanwhile.
fn form_and_run(ranks: Vec<Rendezvous>, flood: &Arc<Flood>) -> usize {
    let ((), peak) = peak_of_all_threads(|| {
        // The first strangers are there before rank 0 is. They may be by now, and no more can come until it is.
        flood.reaches(&flood.opened, WAVE);
        let groups = join_all(ranks).into_iter().map(Result::unwrap).collect();
        let sums = run_ranks(groups, {
            let flood = flood.clone();
            move |group| {
                let mut data = vec![0f32; 1000];
                // Strangers that came to rank 0 before it had formed the group.
                if flood.is_wanted.load(Ordering::Relaxed) && group.rank() == 0 {
                    let told = Arc::<AtomicUsize>::default();
                    let count = told.clone();
                    group.observe(move |event| {
                        if let GroupEvent::Refused(refused) = event {
                            assert!(refused.to_string().len() < 1024);
                            println!("{refused}");
                            count.fetch_add(refused.connections() as usize, Ordering::Relaxed);
                        }
                    });
                    let told = told.load(Ordering::Relaxed);
                    assert!(told > 0 && told <= flood.opened.load(Ordering::Relaxed), "{told} strangers were counted");
                }
                for step in 0..4 {
                    if group.rank() == 0 {
                        flood.reaches(&flood.tried, flood.tried.load(Ordering::Relaxed) + WAVE);
                    }
                    data.fill((group.rank() + step) as f32);
                    group.all_reduce(&mut data)?;
                }
                group.barrier().map(|()| data)
            }
        });
        let expected = (0..RANKS).map(|rank| rank + 3).sum::<usize>() as f32;
        assert!(sums.into_iter().all(|sum| sum == Ok(vec![expected; 1000])));
    });
    peak
}

#[test]
fn a_group_forms_and_runs_in_a_flood() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some_and(|limit| limit < DESCRIPTORS) {
        let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS), maximum });
        raised.expect("the limit of open files can be raised (ulimit -Hn)");
    }

    let (calm, flood) = (Arc::<Flood>::default(), Arc::<Flood>::default());
    let quiet = form_and_run(rendezvous(RANKS, TransportChoice::Tcp), &calm);
    flood.is_wanted.store(true, Ordering::Relaxed);
    let ranks = rendezvous(RANKS, TransportChoice::Tcp);
    let port = ranks[0].listener.as_ref().unwrap().local_addr().unwrap().port();
    let flooded = std::thread::scope(|scope| {
        // Ranks that have met listen no more, so a thread whose first turn comes late would find no port.
        let gang = || Gang { flood: &flood, ports: vec![port], tries: 0 };
        for _ in 0..CROWDS {
            scope.spawn(move || gang().crowd((STRANGERS - PATIENT) / CROWDS));
        }
        scope.spawn(move || gang().besiege(PATIENT));
        let peak = std::panic::catch_unwind(AssertUnwindSafe(|| form_and_run(ranks, &flood)));
        flood.ends.store(true, Ordering::Relaxed);
        peak.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let opened = flood.opened.load(Ordering::Relaxed);
    println!("{opened} connections of strangers; {quiet} bytes at most without them, {flooded} with them");
    assert!(flooded < quiet + RANKS * UNPROVEN, "{quiet} bytes without strangers, {flooded} with them");
}
