//! A relay between two ranks that passes their handshake on, and then changes what they send. Every change ends the job
//! with one cause that names the link.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;

use crate::cause::host_name;
use crate::failure::Failure;
use crate::flight::FlightRecorder;
use crate::group::GroupState;
use crate::locks::lock;
use crate::net::handshake::{HandshakeError, Introduction, Purpose, answer, introduce_with, receive_with};
use crate::net::link::Link;
use crate::net::record::tests::CIPHERS;
use crate::net::record::{Cipher, TAG_BYTES};
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
/// Bytes of a message without payload, such as a heartbeat, and of an operation's header, each with its tag.
const MESSAGE: usize = 5 + TAG_BYTES;
const HEADER: usize = HEADER_BYTES + TAG_BYTES;
/// Where the accepting side offers a cipher, and where the connecting side chooses one.
const OFFER: usize = 40;
const CHOICE: usize = 40 + 2;

/// Bytes that a side sends in a handshake that succeeds.
fn handshake_bytes(side: Side) -> usize {
    match side {
        Side::Connecting => CHOICE + 1 + 29 + host_name().len() + 32,
        Side::Accepting => OFFER + 1 + 32 + MESSAGE,
    }
}

/// What the relay does with a part of the bytes that one side sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    FlipBit,
    /// Another cipher, in the place of one.
    OtherCipher,
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
            Change::OtherCipher => bytes[0] ^= Cipher::Aes128Gcm as u8 ^ Cipher::ChaCha20Poly1305 as u8,
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
        let number = rest.strip_prefix(&format!(" to rank {to}: the tag of record ")).unwrap_or_default();
        number.trim_start_matches(|c: char| c.is_ascii_digit()) == " is wrong: the bytes were changed on the way"
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

fn introduction() -> Introduction {
    let identity = Identity::default();
    let host = host_name();
    Introduction { purpose: Purpose::Data, rank: 1, target: 0, world_size: 2, identity, host }
}

/// The data connections of two ranks, of which the second reaches the first at another address than its own, on processors
/// with these ciphers.
fn links(listener: TcpListener, at: SocketAddr, ciphers: [Cipher; 2]) -> Result<[Link; 2], HandshakeError> {
    let token = Token::from_bytes([7; 32]);
    let accepting = thread::spawn({
        let token = token.clone();
        move || {
            let (link, _) = receive_with(ciphers[0], listener.accept().unwrap().0, &token, HANDSHAKE).ok()?;
            answer(&link, None).unwrap();
            Some(link)
        }
    });
    let stream = TcpStream::connect(at).unwrap();
    let connected = introduce_with(ciphers[1], stream, &token, &introduction(), HANDSHAKE)?;
    Ok([accepting.join().unwrap().expect("only one side has finished the handshake"), connected])
}

/// What two ranks return that each have one of these links.
fn on_ranks<T: Send + 'static>(links: [Link; 2], run: impl Fn(Group) -> T + Copy + Send + 'static) -> Vec<T> {
    let failure = Arc::<Failure>::default();
    let ranks = links.into_iter().enumerate().map(|(rank, link)| {
        let members = Members::of_job(rank, 2, Identity::default());
        let topology = Topology::apart(2);
        let region = Region::private(HierarchicalTransport::layout(&topology, rank)).unwrap();
        let links = vec![(1 - rank, link)];
        let links = Box::new(Sockets::new(links, 2).unwrap());
        let transport = HierarchicalTransport::new(members.clone(), topology.clone(), Arc::new(region), links).unwrap();
        let options = GroupOptions::default();
        let connectivity = Connectivity::within_process();
        let group_state = GroupState::new(failure.clone(), FlightRecorder::default(), options, connectivity, None);
        let group = Group::new((members, topology), Some(Box::new(transport)), vec![], group_state).unwrap();
        thread::spawn(move || run(group))
    });
    let ranks: Vec<_> = ranks.collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

/// The errors of two ranks in an all-reduce of `count` values, whose data connection leads through a relay; or the
/// connecting side's error if the handshake fails.
fn errors_of_an_all_reduce(attack: Attack, count: usize, ciphers: [Cipher; 2]) -> Vec<String> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let relayed = relay(listener.local_addr().unwrap(), Some(attack)).0;
    match links(listener, relayed, ciphers) {
        Ok(links) => on_ranks(links, move |group| {
            // The second call meets what was left out of the first.
            let call = || group.all_reduce(&mut vec![1f32; count]);
            call().and_then(|()| call()).unwrap_err().to_string()
        }),
        Err(error) => vec![error.to_string()],
    }
}

/// A relay that keeps what the connecting and the accepting side of the first connection send.
fn recording_relay(target: SocketAddr) -> (SocketAddr, [Arc<Mutex<Vec<u8>>>; 2]) {
    struct Recorder(TcpStream, Arc<Mutex<Vec<u8>>>);

    impl Write for Recorder {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let written = self.0.write(bytes)?;
            lock(&self.1).extend(&bytes[..written]);
            Ok(written)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let recorded = [(); 2].map(|()| Arc::<Mutex<Vec<u8>>>::default());
    let kept = recorded.clone();
    thread::spawn(move || {
        let client = listener.accept().unwrap().0;
        let server = TcpStream::connect(target).unwrap();
        for ((from, to), kept) in [(&client, &server), (&server, &client)].into_iter().zip(kept) {
            let mut from = from.try_clone().unwrap();
            let mut to = Recorder(to.try_clone().unwrap(), kept);
            thread::spawn(move || io::copy(&mut from, &mut to));
        }
    });
    (address, recorded)
}

#[test]
fn both_ciphers_give_the_same_sums_and_show_none_of_the_values() {
    const COUNT: usize = 50_000;
    let values = |rank: usize| (0..COUNT).map(move |i| ((i * 7 + rank * 13) as f32).sqrt());
    let sums: Vec<f32> = values(0).zip(values(1)).map(|(a, b)| a + b).collect();
    let plain: [Vec<f32>; 3] = [values(0).collect(), values(1).collect(), sums.clone()];
    let bytes = plain.map(|values| values.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>());
    // All that any 16 bytes of a stream could hold of them.
    let pieces: std::collections::HashSet<&[u8]> = bytes.iter().flat_map(|bytes| bytes.windows(16)).collect();
    for ciphers in CIPHERS.into_iter().flat_map(|one| CIPHERS.map(|other| [one, other])) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (relayed, recorded) = recording_relay(listener.local_addr().unwrap());
        let found = on_ranks(links(listener, relayed, ciphers).unwrap(), move |group| {
            let mut data: Vec<f32> = values(group.rank()).collect();
            group.all_reduce(&mut data).unwrap();
            data
        });
        assert!(found.iter().all(|found| *found == sums), "{ciphers:?}");
        for (side, recorded) in [Side::Connecting, Side::Accepting].into_iter().zip(recorded) {
            let recorded = lock(&recorded);
            // Each side sends its values of the other's piece, and the sums of its own.
            assert!(recorded.len() > handshake_bytes(side) + HEADER + 4 * COUNT, "{}", recorded.len());
            let at = recorded.windows(16).position(|window| pieces.contains(window));
            assert_eq!(at, None, "{ciphers:?}: the {side} side shows values");
            // The introduction is sent before there are keys.
            let introduction = introduction().to_bytes();
            let shows_it = recorded.windows(introduction.len()).any(|window| window == introduction);
            assert_eq!(shows_it, side == Side::Connecting);
        }
    }
}

#[test]
fn nobody_between_two_ranks_chooses_their_cipher() {
    let check = |ciphers: [Cipher; 2], (from, at): (Side, usize), expected: &str| {
        let attack = Attack { connection: 0, from, at, length: 1, change: Change::OtherCipher };
        assert_eq!(errors_of_an_all_reduce(attack, 100, ciphers), [expected], "{ciphers:?} {from}");
    };
    for ciphers in CIPHERS.into_iter().flat_map(|one| CIPHERS.map(|other| [one, other])) {
        check(ciphers, (Side::Accepting, OFFER), "the tokens differ");
        check(ciphers, (Side::Connecting, CHOICE), "the connection was closed before it was accepted");
    }
}

#[test]
fn changed_data_is_the_cause_on_all_ranks() {
    let sides = [Side::Connecting, Side::Accepting];
    for (from, ciphers) in sides.into_iter().flat_map(|from| CIPHERS.map(|cipher| (from, [cipher; 2]))) {
        for (change, length) in CHANGES.map(|change| (change, if change == Change::Reorder { 2 } else { 1 } * HEADER)) {
            let attack = Attack { connection: 0, from, at: handshake_bytes(from), length, change };
            for text in errors_of_an_all_reduce(attack, 1000, ciphers) {
                assert!(text.starts_with("the group failed during all_reduce(sum) of 1000 f32 #"), "{text}");
                assert_names_the_link(&text, attack);
            }
        }
        let attack =
            Attack { connection: 0, from, at: handshake_bytes(from) + 1000, length: 1, change: Change::Truncate };
        for text in errors_of_an_all_reduce(attack, 1000, ciphers) {
            // A rank reads the end, or is refused the next write.
            let is_lost = [" closed: see", " broke ("].iter().any(|end| text.contains(end));
            assert!(text.contains("its connection to rank ") && is_lost, "{text}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn no_flipped_bit_passes(
        is_connecting: bool,
        is_short: bool,
        cipher in prop::sample::select(&CIPHERS[..]),
        place: prop::sample::Index,
    ) {
        let from = if is_connecting { Side::Connecting } else { Side::Accepting };
        // Each rank sends a header and, for few values, all of them; for many, those of the other's piece and the sums of its
        // own.
        let (count, values) = if is_short { (100, 100 * 4 + TAG_BYTES) } else { (2400, 2 * (1200 * 4 + TAG_BYTES)) };
        let sent = handshake_bytes(from) + HEADER + values;
        let attack = Attack { connection: 0, from, at: place.index(sent), length: 1, change: Change::FlipBit };
        let errors = errors_of_an_all_reduce(attack, count, [cipher; 2]);
        if attack.at >= handshake_bytes(from) {
            errors.iter().for_each(|text| assert_names_the_link(text, attack));
        }
    }
}

#[test]
fn agents_notice_changed_messages() {
    let token = Token::from_bytes([7; 32]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
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
    assert!(error.ends_with(": the tag of record 1 is wrong: the bytes were changed on the way"), "{error}");
}
