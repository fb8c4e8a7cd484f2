//! A relay between two ranks that passes their handshake on, and then changes what they send. Every change ends the job
//! with one cause that names the link.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;

use crate::cause::host_name;
use crate::failure::Failure;
use crate::flight::FlightRecorder;
use crate::group::GroupState;
use crate::net::handshake::{Introduction, Purpose, answer, introduce, receive};
use crate::net::mac::MAC_BYTES;
use crate::operation::{HEADER_BYTES, Identity};
use crate::rendezvous::form::Connectivity;
use crate::token::Side;
use crate::topology::Topology;
use crate::transport::Members;
use crate::transport::hierarchical::HierarchicalTransport;
use crate::transport::hierarchical::sockets::Sockets;
use crate::transport::region::Region;
use crate::{Channel, ChannelListener, Group, GroupEvent, GroupOptions, Rendezvous, Token};

/// Far longer than any of these tests needs.
const DEADLINE: Duration = Duration::from_secs(60);
/// Longer than a handshake takes. A flipped bit in a length makes the sides wait this long.
const HANDSHAKE: Duration = Duration::from_secs(20);
/// Bytes of a message without payload, such as a heartbeat, and of an operation's header, each with its MAC.
const MESSAGE: usize = 5 + MAC_BYTES;
const HEADER: usize = HEADER_BYTES + MAC_BYTES;

/// Bytes that a side sends in a handshake that succeeds.
fn handshake_bytes(side: Side) -> usize {
    match side {
        Side::Connecting => 40 + 2 + 29 + host_name().len() + 32,
        Side::Accepting => 40 + 32 + MESSAGE,
    }
}

/// What the relay does with a part of the bytes that one side sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    FlipBit,
    SendTwice,
    LeaveOut,
    /// The second half first.
    Reorder,
    /// Back to where they came from.
    Return,
    /// The connection ends before them.
    Truncate,
}

const CHANGES: [Change; 5] = [Change::FlipBit, Change::SendTwice, Change::LeaveOut, Change::Reorder, Change::Return];

/// A change to `length` bytes after the first `at` that a side sends on a connection, counted from 0.
#[derive(Clone, Copy, Debug)]
struct Attack {
    connection: usize,
    from: Side,
    at: usize,
    length: usize,
    change: Change,
}

/// The address of a relay to `target`, and the numbers of the connections as they come.
fn relay(target: SocketAddr, attack: Option<Attack>) -> (SocketAddr, mpsc::Receiver<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, connections) = mpsc::channel();
    thread::spawn(move || {
        for (connection, client) in listener.incoming().enumerate() {
            let client = client.unwrap();
            // Rank 0 may have left.
            let Ok(server) = TcpStream::connect(target) else { continue };
            // Most tests do not count.
            let _ = sender.send(connection);
            let ways = [(Side::Connecting, &client, &server), (Side::Accepting, &server, &client)];
            for (side, from, to) in ways {
                let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let attack = attack.filter(|attack| (attack.connection, attack.from) == (connection, side));
                thread::spawn(move || {
                    // The ranks may close the connection at any time.
                    let _ = pass_on(&from, &to, attack);
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    (address, connections)
}

fn pass_on(mut from: &TcpStream, mut to: &TcpStream, attack: Option<Attack>) -> io::Result<()> {
    if let Some(Attack { at, length, change, .. }) = attack {
        io::copy(&mut from.take(at as u64), &mut to)?;
        let mut bytes = vec![0; length];
        from.read_exact(&mut bytes)?;
        match change {
            Change::FlipBit => bytes[0] ^= 4,
            Change::SendTwice => bytes.extend_from_within(..),
            Change::Reorder => bytes.rotate_left(length / 2),
            Change::LeaveOut => bytes.clear(),
            Change::Return => from.write_all(&std::mem::take(&mut bytes))?,
            Change::Truncate => {
                to.shutdown(Shutdown::Both)?;
                return from.shutdown(Shutdown::Both);
            }
        }
        to.write_all(&bytes)?;
    }
    io::copy(&mut from, &mut to).map(drop)
}

/// The error names the link on which `attack` is noticed, between rank 1, which connects, and rank 0.
fn assert_names_the_link(text: &str, attack: Attack) {
    let is_named = |[from, to]: [usize; 2]| {
        let after = text.split_once(&format!("link from rank {from} at 127.0.0.1:")).map_or("", |(_, after)| after);
        let rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
        rest == format!(" to rank {to}: a frame's MAC is wrong: the bytes were changed on the way")
    };
    let expected = match (attack.change, attack.from) {
        // The sender gets its own bytes, and the other side misses them: either may be the first to notice.
        (Change::Return, _) => &[[0, 1], [1, 0]][..],
        (_, Side::Connecting) => &[[1, 0]],
        (_, Side::Accepting) => &[[0, 1]],
    };
    assert!(expected.iter().any(|ranks| is_named(*ranks)), "{attack:?}: {text}");
}

/// The errors of three ranks of a job in which rank 1 reaches rank 0 through a relay.
fn errors_of_a_job(attack: Attack) -> Vec<String> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (relayed, _) = relay(address, Some(attack));
    let (watched, connections) = relay(address, None);
    let mut listener = Some(listener);
    let mut start = |rank: usize, address: SocketAddr| {
        let mut rendezvous = Rendezvous::tcp(&format!("tcp://{address}"), rank, 3).unwrap();
        rendezvous.token = Some(Token::from_bytes([7; 32]));
        rendezvous.listener = listener.take();
        // Two heartbeats come soon, and a busy machine does not make the ranks seem silent.
        rendezvous.heartbeat = Duration::from_secs(4);
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let group = match rendezvous.join() {
                Ok(group) => group,
                Err(error) => return sender.send(error.to_string()),
            };
            let (told, failed) = mpsc::channel();
            group.observe(move |event| {
                if let GroupEvent::Failed(cause) = event {
                    let _ = told.send(cause.to_string());
                }
            });
            sender.send(failed.recv_timeout(DEADLINE).unwrap_or_else(|_| "no failure".into()))
        });
        receiver
    };
    let (first, last) = (start(0, address), start(2, watched));
    // With its second connection, to the store, rank 2 is a member that learns of every failure.
    while connections.recv_timeout(DEADLINE).unwrap() == 0 {}
    let ranks = [first, start(1, relayed), last];
    ranks.into_iter().map(|rank| rank.recv_timeout(2 * DEADLINE).unwrap()).collect()
}

#[test]
fn changed_control_and_store_messages_are_the_cause_on_all_ranks() {
    // Rank 1 opens its control connection first, and the one to the store second.
    let attacks = [0, 1].into_iter().flat_map(|connection| {
        [Side::Connecting, Side::Accepting].into_iter().flat_map(move |from| {
            CHANGES.map(|change| {
                let length = if change == Change::Reorder { 2 * MESSAGE } else { MESSAGE };
                Attack { connection, from, at: handshake_bytes(from), length, change }
            })
        })
    });
    // The store answers one request at a time: while an answer is held back nothing follows, and the rank's deadline
    // ends its wait.
    let is_missed = |attack: &Attack| matches!(attack.change, Change::LeaveOut | Change::Reorder);
    let attacks =
        attacks.filter(|attack| !(attack.connection == 1 && attack.from == Side::Accepting && is_missed(attack)));
    let jobs: Vec<_> = attacks.map(|attack| (attack, thread::spawn(move || errors_of_a_job(attack)))).collect();
    for (attack, job) in jobs {
        for text in job.join().unwrap() {
            assert_names_the_link(&text, attack);
        }
    }
}

#[test]
fn truncated_control_and_store_messages_fail_all_ranks() {
    let check = |connection: usize, from: Side, expected: &str| {
        let at = handshake_bytes(from) + 9;
        for text in errors_of_a_job(Attack { connection, from, at, length: 1, change: Change::Truncate }) {
            assert!(text.contains(expected), "{text:?} lacks {expected:?}");
        }
    };
    for from in [Side::Connecting, Side::Accepting] {
        // Each end of a control connection takes the other for dead, and the first to say so is believed.
        check(0, from, "without goodbye: see its own messages");
        check(1, from, "connection to rank 0 lost");
    }
}

/// The errors of two ranks in an all-reduce of `count` values, whose data connection leads through a relay; or the
/// connecting side's error if the handshake fails.
fn errors_of_an_all_reduce(attack: Attack, count: usize) -> Vec<String> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let relayed = relay(listener.local_addr().unwrap(), Some(attack)).0;
    let token = Token::from_bytes([7; 32]);
    let accepting = thread::spawn({
        let token = token.clone();
        move || {
            let (link, _) = receive(listener.accept().unwrap().0, &token, HANDSHAKE).ok()?;
            answer(&link, None).unwrap();
            Some(link)
        }
    });
    let (identity, host) = (Identity::default(), host_name());
    let introduction = Introduction { purpose: Purpose::Data, rank: 1, target: 0, world_size: 2, identity, host };
    let connected = introduce(TcpStream::connect(relayed).unwrap(), &token, &introduction, HANDSHAKE);
    let connected = match connected {
        Ok(link) => link,
        Err(error) => return vec![error.to_string()],
    };
    let accepted = accepting.join().unwrap().expect("only one side has finished the handshake");
    let failure = Arc::<Failure>::default();
    let ranks = [accepted, connected].into_iter().enumerate().map(|(rank, link)| {
        let members = Members::of_job(rank, 2, identity);
        let topology = Topology::apart(2);
        let region = Region::private(HierarchicalTransport::layout(&topology, rank)).unwrap();
        let links = vec![(1 - rank, link)];
        let links = Box::new(Sockets::new(links).unwrap());
        let transport = HierarchicalTransport::new(members.clone(), topology, Arc::new(region), links).unwrap();
        let (options, connectivity) = (GroupOptions::default(), Connectivity::within_process());
        let group_state = GroupState::new(failure.clone(), FlightRecorder::default(), options, connectivity, None);
        let group = Group::new(members, Some(Box::new(transport)), vec![], group_state).unwrap();
        thread::spawn(move || {
            // The second call meets what was left out of the first.
            let call = || group.all_reduce(&mut vec![1f32; count]);
            call().and_then(|()| call()).unwrap_err().to_string()
        })
    });
    let ranks: Vec<_> = ranks.collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

#[test]
fn changed_data_is_the_cause_on_all_ranks() {
    for from in [Side::Connecting, Side::Accepting] {
        for (change, length) in CHANGES.map(|change| (change, if change == Change::Reorder { 2 } else { 1 } * HEADER)) {
            let attack = Attack { connection: 0, from, at: handshake_bytes(from), length, change };
            for text in errors_of_an_all_reduce(attack, 1000) {
                assert!(text.starts_with("the group failed during all_reduce(sum) of 1000 f32 #"), "{text}");
                assert_names_the_link(&text, attack);
            }
        }
        let attack =
            Attack { connection: 0, from, at: handshake_bytes(from) + 1000, length: 1, change: Change::Truncate };
        for text in errors_of_an_all_reduce(attack, 1000) {
            // A rank reads the end, or is refused the next write.
            let is_lost = [" closed: see", " broke ("].iter().any(|end| text.contains(end));
            assert!(text.contains("its connection to rank ") && is_lost, "{text}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn no_flipped_bit_passes(is_connecting: bool, is_short: bool, place: prop::sample::Index) {
        let from = if is_connecting { Side::Connecting } else { Side::Accepting };
        // Each rank sends a header and, for few values, all of them; for many, those of the other's piece and the sums of its
        // own.
        let (count, values) = if is_short { (100, 100 * 4 + MAC_BYTES) } else { (2400, 2 * (1200 * 4 + MAC_BYTES)) };
        let sent = handshake_bytes(from) + HEADER + values;
        let attack = Attack { connection: 0, from, at: place.index(sent), length: 1, change: Change::FlipBit };
        let errors = errors_of_an_all_reduce(attack, count);
        if attack.at >= handshake_bytes(from) {
            errors.iter().for_each(|text| assert_names_the_link(text, attack));
        }
    }
}

#[test]
fn agents_notice_changed_messages() {
    let (token, listener) = (Token::from_bytes([7; 32]), TcpListener::bind("127.0.0.1:0").unwrap());
    let from = Side::Connecting;
    let attack = Attack { connection: 0, from, at: handshake_bytes(from), length: 1, change: Change::FlipBit };
    let relayed = relay(listener.local_addr().unwrap(), Some(attack)).0;
    let (sender, receiver) = mpsc::channel();
    let admit = move |channel: Channel| sender.send(channel.receive().unwrap_err().to_string()).unwrap();
    let _listener = ChannelListener::start(listener, token.clone(), "job", admit).unwrap();
    let channel = Channel::connect(relayed, &token, "job", DEADLINE).unwrap();
    channel.send(b"beat").unwrap();
    let error = receiver.recv_timeout(DEADLINE).unwrap();
    assert!(error.starts_with("link from the agent at 127.0.0.1:"), "{error}");
    assert!(error.ends_with("a frame's MAC is wrong: the bytes were changed on the way"), "{error}");
}
