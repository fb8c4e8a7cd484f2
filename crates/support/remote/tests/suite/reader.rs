//! Reading from the start to the end: much at a time, several requests under way, each piece once, and no more than is read.

use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;
use std::thread;

use enmasse_remote::{Object, Remote, RemoteOptions};
use tempfile::tempdir;

use crate::ahead::{sorted, until_owners};
use crate::server::Server;
use crate::{PIECE, noise, object, options};

/// Bytes of a request.
const RUN: usize = 8 * PIECE;

/// The request for a run of an object of so many bytes.
fn request(run: usize, length: usize) -> String {
    format!("a {}-{}", run * RUN, ((run + 1) * RUN).min(length) - 1)
}

fn requests(runs: impl Iterator<Item = usize>, length: usize) -> Vec<String> {
    sorted(runs.map(|run| request(run, length)).collect())
}

fn read(object: &Arc<Object>) -> std::io::Result<Vec<u8>> {
    let mut found = Vec::new();
    object.reader().read_to_end(&mut found).map(|_| found)
}

#[test]
fn all_runs_of_an_object_are_under_way_together() {
    let cache = tempdir().unwrap();
    let bytes = noise(4 * RUN + PIECE + 7);
    let server = Server::start(&[("a", &bytes)]);
    // A cache that keeps nothing makes no difference.
    for limit in [1 << 30, 0] {
        let options = RemoteOptions { limit, ..options(&cache.path().join(limit.to_string())) };
        let object = Remote::new(&options).unwrap().object(&format!("{}/a", server.address)).unwrap();
        server.requests();
        server.hold(true);
        thread::scope(|scope| {
            let found = scope.spawn(|| read(&object).unwrap());
            server.until_waiting(5);
            server.hold(false);
            assert!(found.join().unwrap() == bytes);
        });
        assert_eq!(sorted(server.requests()), requests(0..5, bytes.len()), "{limit}");
    }
}

#[test]
fn two_processes_ask_for_each_run_once() {
    let cache = tempdir().unwrap();
    let bytes = noise(3 * RUN);
    let server = Server::start(&[("a", &bytes)]);
    let [first, second] = [(); 2].map(|()| object(&server, cache.path()).unwrap());
    server.requests();
    server.hold(true);
    thread::scope(|scope| {
        let found = scope.spawn(|| read(&first).unwrap());
        server.until_waiting(3);
        let other = scope.spawn(|| read(&second).unwrap());
        server.hold(false);
        assert!(found.join().unwrap() == bytes && other.join().unwrap() == bytes);
    });
    assert_eq!(sorted(server.requests()), requests(0..3, bytes.len()));
    // What the cache has is not asked for.
    assert!(read(&first).unwrap() == bytes);
    assert_eq!(server.requests(), [""; 0]);
}

#[test]
fn a_fault_ahead_is_left_to_the_reader() {
    let cache = tempdir().unwrap();
    let bytes = noise(4 * RUN);
    let server = Server::start(&[("a", &bytes)]);
    let object = object(&server, cache.path()).unwrap();
    server.requests();
    server.refuse(&request(2, bytes.len()));
    let mut reader = object.reader();
    let mut found = Vec::new();
    let error = reader.read_to_end(&mut found).unwrap_err();
    assert!(found == bytes[..2 * RUN]);
    let refused = "it answers 403 Forbidden: this file may not be read without a login";
    assert_eq!(error.to_string(), format!("{0}/a: {0}: {refused}", server.address));
    // What lies behind it can be read.
    found.clear();
    reader.seek(SeekFrom::Start(3 * RUN as u64)).unwrap();
    reader.read_to_end(&mut found).unwrap();
    assert!(found == bytes[3 * RUN..]);
    assert_eq!(sorted(server.requests()), requests([0, 1, 2, 2, 3].into_iter(), bytes.len()));
}

/// The requests of a reader that begins to read these runs, in order, of an object of nine: for each those that come then, and whether it succeeds.
fn check_reach(refused: Option<usize>, expected: &[(usize, &[usize], bool)]) {
    let cache = tempdir().unwrap();
    let bytes = noise(PIECE).repeat(9 * RUN / PIECE);
    let server = Server::start(&[("a", &bytes)]);
    let object = object(&server, cache.path()).unwrap();
    server.requests();
    refused.into_iter().for_each(|run| server.refuse(&request(run, bytes.len())));
    let mut reader = object.reader();
    for &(run, asked, succeeds) in expected {
        let begin = run * RUN;
        let mut found = [0; 10];
        reader.seek(SeekFrom::Start(begin as u64)).unwrap();
        assert_eq!(reader.read_exact(&mut found).is_ok(), succeeds, "{run}");
        assert!(found == bytes[begin..begin + 10] || !succeeds, "{run}");
        server.until_requests(asked.len());
        assert_eq!(sorted(server.requests()), requests(asked.iter().copied(), bytes.len()), "{run}");
    }
}

#[test]
fn what_is_skipped_is_not_fetched() {
    // Where reading goes on, ever more is fetched ahead again.
    check_reach(None, &[(1, &[1], true), (3, &[3], true), (4, &[4, 5], true), (5, &[6, 7], true), (8, &[8], true)]);
}

#[test]
fn a_server_that_fails_is_asked_for_less() {
    check_reach(Some(4), &[(2, &[2], true), (3, &[3, 4], true), (4, &[4], false), (5, &[5], true), (6, &[6, 7], true)]);
}

#[test]
fn dropped_it_asks_for_nothing_more() {
    let cache = tempdir().unwrap();
    let bytes = vec![7; 20 * RUN];
    let server = Server::start(&[("a", &bytes)]);
    let object = object(&server, cache.path()).unwrap();
    server.requests();
    let alone = Arc::strong_count(&object);
    object.reader().read_exact(&mut [0; 10]).unwrap();
    until_owners(&object, alone);
    // Its own request, and as many as may be ahead.
    assert_eq!(sorted(server.requests()), requests(0..17, bytes.len()));
}
