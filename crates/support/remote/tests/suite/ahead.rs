//! Reading ahead: in order, a few requests at a time, each piece once, no further than the cache allows, and no longer than it is wanted.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use enmasse_remote::{Ahead, Extent, Object, Remote, RemoteOptions};
use tempfile::tempdir;

use crate::server::Server;
use crate::{PIECE, noise, object, options};

/// Requests at a time.
const REQUESTS: usize = 16;

const DEADLINE: Duration = Duration::from_secs(300);

/// The request for a piece.
fn request(piece: usize) -> String {
    format!("a {}-{}", piece * PIECE, (piece + 1) * PIECE - 1)
}

pub fn sorted(mut requests: Vec<String>) -> Vec<String> {
    requests.sort();
    requests
}

/// Reads these pieces ahead, one for each turn. The receiver gets each turn that is looked at, and is disconnected after the last.
fn start(object: &Arc<Object>, pieces: &[usize]) -> (Ahead, Receiver<usize>) {
    let (looked, looks) = channel();
    let (object, pieces) = (object.clone(), pieces.to_vec());
    let ahead = Ahead::start(pieces.into_iter().enumerate().map(move |(turn, piece)| {
        let _ = looked.send(turn);
        // Some bytes in the middle of it.
        let begin = (piece * PIECE + 100) as u64;
        vec![Extent { object: object.clone(), bytes: begin..begin + 100 }]
    }));
    (ahead, looks)
}

/// Waits until a turn is looked at.
fn until_turn(looks: &Receiver<usize>, turn: usize) {
    while looks.recv_timeout(DEADLINE).unwrap() < turn {}
}

/// Waits until no more turns are looked at.
fn until_over(looks: &Receiver<usize>) {
    let end = std::iter::from_fn(|| Some(looks.recv_timeout(DEADLINE))).find_map(Result::err);
    assert_eq!(end, Some(RecvTimeoutError::Disconnected));
}

/// Waits until an object has so many owners. Threads let go of it when they end.
pub fn until_owners(object: &Arc<Object>, owners: usize) {
    let began = Instant::now();
    while Arc::strong_count(object) > owners {
        assert!(began.elapsed() < DEADLINE);
        thread::yield_now();
    }
}

fn is_piece(object: &Object, piece: usize, bytes: &[u8]) {
    let mut found = vec![0; PIECE];
    object.fill((piece * PIECE) as u64, &mut found).unwrap();
    assert!(found == bytes[piece * PIECE..][..PIECE], "{piece}");
}

#[test]
fn a_few_requests_at_a_time_and_each_piece_once() {
    let cache = tempdir().unwrap();
    let bytes = noise(40 * PIECE);
    let server = Server::start(&[("a", &bytes)]);
    let object = object(&server, cache.path()).unwrap();
    server.requests();
    let order: Vec<usize> = (0..40).map(|turn| turn * 7 % 40).collect();
    // Several turns need the same piece.
    let turns: Vec<usize> = order.iter().flat_map(|&piece| [piece, piece, order[0]]).collect();
    server.hold(true);
    let (_ahead, _looks) = start(&object, &turns);
    server.until_waiting(REQUESTS);
    thread::scope(|scope| {
        // A thread that needs a piece that is under way waits for it; another one is not held up.
        let early = scope.spawn(|| is_piece(&object, order[0], &bytes));
        let late = scope.spawn(|| is_piece(&object, order[39], &bytes));
        server.until_waiting(REQUESTS + 1);
        let expected = order[..REQUESTS].iter().chain([&order[39]]).map(|&piece| request(piece)).collect();
        assert_eq!(sorted(server.requests()), sorted(expected));
        server.hold(false);
        early.join().unwrap();
        late.join().unwrap();
    });
    server.until_requests(40 - REQUESTS - 1);
    order.iter().for_each(|&piece| is_piece(&object, piece, &bytes));
    assert_eq!(sorted(server.requests()), sorted(order[REQUESTS..39].iter().map(|&piece| request(piece)).collect()));
}

#[test]
fn a_long_read_leaves_out_what_is_under_way() {
    let cache = tempdir().unwrap();
    let bytes = noise(8 * PIECE);
    let server = Server::start(&[("a", &bytes)]);
    let object = object(&server, cache.path()).unwrap();
    server.requests();
    server.hold(true);
    let (_ahead, _looks) = start(&object, &[3]);
    server.until_waiting(1);
    thread::scope(|scope| {
        let all = scope.spawn(|| crate::all(&object).unwrap() == bytes);
        server.until_waiting(2);
        server.hold(false);
        assert!(all.join().unwrap());
    });
    let before = format!("a 0-{}", 3 * PIECE - 1);
    let after = format!("a {}-{}", 4 * PIECE, 8 * PIECE - 1);
    assert_eq!(server.requests(), [request(3), before, after]);
}

#[test]
fn no_further_than_the_cache_allows() {
    let cache = tempdir().unwrap();
    let bytes = noise(40 * PIECE);
    let server = Server::start(&[("a", &bytes)]);
    let opened = |limit: u64, cache: &Path| {
        let remote = Remote::new(&RemoteOptions { limit, ..options(cache) }).unwrap();
        let object = remote.object(&format!("{}/a", server.address)).unwrap();
        server.requests();
        (remote, object)
    };
    // A sixteenth of it is four pieces.
    let (_remote, object) = opened(64 * PIECE as u64, &cache.path().join("large"));
    let (ahead, looks) = start(&object, &(0..40).collect::<Vec<_>>());
    let mut requests = Vec::new();
    for piece in 0..40 {
        let expected = 40.min(piece + 4);
        server.until_requests(expected - requests.len());
        requests.extend(server.requests());
        assert_eq!(requests.len(), expected);
        ahead.turns().advance();
        is_piece(&object, piece, &bytes);
    }
    until_over(&looks);
    assert_eq!(sorted(requests), sorted((0..40).map(request).collect()));
    // One that has no room for a piece.
    let (_remote, object) = opened(15 * PIECE as u64, &cache.path().join("small"));
    let (ahead, looks) = start(&object, &(0..40).collect::<Vec<_>>());
    for turn in 0..40 {
        until_turn(&looks, turn);
        ahead.turns().advance();
    }
    until_over(&looks);
    assert_eq!(server.requests(), [""; 0]);
}

/// Nothing else bounds the search where the cache has everything.
#[test]
fn a_few_thousand_turns_are_looked_at() {
    const FAR: usize = 4096;
    let cache = tempdir().unwrap();
    let bytes = noise(PIECE);
    let server = Server::start(&[("a", &bytes)]);
    let object = object(&server, cache.path()).unwrap();
    is_piece(&object, 0, &bytes);
    let (ahead, looks) = start(&object, &[0; 4 * FAR]);
    // It goes on each time that half of the turns have begun.
    for begun in (0..=3 * FAR).step_by(FAR / 2) {
        until_turn(&looks, (begun + FAR).min(4 * FAR - 1));
        assert!(looks.try_recv().is_err());
        (0..FAR / 2).for_each(|_| ahead.turns().advance());
    }
    until_over(&looks);
}

#[test]
fn a_fault_is_left_to_the_one_who_needs_the_piece() {
    let cache = tempdir().unwrap();
    let bytes = noise(20 * PIECE);
    let server = Server::start(&[("a", &bytes)]);
    let object = object(&server, cache.path()).unwrap();
    server.requests();
    server.refuse(&request(7));
    let (_ahead, looks) = start(&object, &(0..20).collect::<Vec<_>>());
    until_over(&looks);
    server.until_requests(20);
    for piece in (0..20).filter(|&piece| piece != 7) {
        is_piece(&object, piece, &bytes);
    }
    assert_eq!(sorted(server.requests()), sorted((0..20).map(request).collect()));
    let error = object.fill(7 * PIECE as u64, &mut [0; 10]).unwrap_err().to_string();
    assert!(error.contains("it answers 403 Forbidden"), "{error}");
    assert_eq!(server.requests(), [request(7)]);
}

#[test]
fn dropped_it_asks_for_nothing_more() {
    let cache = tempdir().unwrap();
    let bytes = noise(40 * PIECE);
    let server = Server::start(&[("a", &bytes)]);
    let object = object(&server, cache.path()).unwrap();
    server.requests();
    let alone = Arc::strong_count(&object);
    server.hold(true);
    let (ahead, looks) = start(&object, &(0..40).collect::<Vec<_>>());
    server.until_waiting(REQUESTS);
    drop(ahead);
    server.hold(false);
    until_over(&looks);
    until_owners(&object, alone);
    assert_eq!(server.requests().len(), REQUESTS);
}
