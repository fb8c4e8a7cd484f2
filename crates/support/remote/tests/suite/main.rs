//! Objects of a server on loopback that fails in every way, through caches of every size.

mod ahead;
mod reader;
mod server;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use enmasse_remote::{Object, Remote, RemoteError, RemoteOptions, Variables};
use server::{Answer, Server};
use tempfile::tempdir;

/// Bytes of a piece.
const PIECE: usize = 1 << 20;

/// Bytes that repeat nowhere in a file.
fn noise(count: usize) -> Vec<u8> {
    (0..count as u64).map(|index| (index.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 53) as u8).collect()
}

fn options(cache: &Path) -> RemoteOptions {
    RemoteOptions {
        cache: Some(cache.to_owned()),
        limit: 1 << 30,
        timeout: Duration::from_secs(20),
        variables: Variables::new([]),
    }
}

fn remote(cache: &Path) -> Arc<Remote> {
    Remote::new(&options(cache)).unwrap()
}

/// The object `a` of a server, through a cache of its own.
fn object(server: &Server, cache: &Path) -> Result<Arc<Object>, RemoteError> {
    remote(cache).object(&format!("{}/a", server.address))
}

fn all(object: &Object) -> Result<Vec<u8>, RemoteError> {
    let mut bytes = vec![0; object.length() as usize];
    object.fill(0, &mut bytes).map(|()| bytes)
}

/// A bit for each MiB of such a length was more memory than there is, and the process was aborted.
#[test]
fn lengths_that_no_object_has() {
    let server = Server::start(&[("a", &noise(100))]);
    let check = |length: u64, expected: Result<u64, String>| {
        let cache = tempdir().unwrap();
        server.answers(&[Answer::Of(length)]);
        let found = object(&server, cache.path()).map(|object| object.length());
        assert_eq!(found.map_err(|error| error.to_string()), expected);
    };
    let refused = |length: u64| {
        let limit = "and the limit is 1125899906842624";
        Err(format!("{0}/a: {0}: it says that the object has {length} bytes, {limit}", server.address))
    };
    check(1 << 50, Ok(1 << 50));
    check((1 << 50) + 1, refused((1 << 50) + 1));
    check(u64::MAX, refused(u64::MAX));
}

/// Bytes of all files below a folder.
fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| match entry.metadata().unwrap() {
            found if found.is_dir() => size(&entry.path()),
            found => found.len(),
        })
        .sum()
}

#[test]
fn objects_are_read_as_files_are() {
    let cache = tempdir().unwrap();
    let bytes = noise(5 * PIECE / 2);
    let server = Server::start(&[("a", &bytes)]);
    let object = object(&server, cache.path()).unwrap();
    assert_eq!(object.length(), bytes.len() as u64);
    let check = |offset: usize, length: usize, expected: &[&str]| {
        let mut found = vec![0; length];
        object.fill(offset as u64, &mut found).unwrap();
        assert!(found == bytes[offset..offset + length], "{offset} {length}");
        assert_eq!(server.requests(), expected, "{offset} {length}");
    };
    check(10, 0, &["a 0-0"]);
    check(10, 20, &["a 0-1048575"]);
    check(PIECE - 5, 5, &[]);
    check(PIECE - 5, PIECE, &["a 1048576-2097151"]);
    check(bytes.len() - 1, 1, &["a 2097152-2621439"]);
    check(0, bytes.len(), &[]);
    // Another process asks whether it is the same, and no more.
    let again = remote(cache.path()).object(&format!("{}/a", server.address)).unwrap();
    assert!(all(&again).unwrap() == bytes);
    assert_eq!(server.requests(), ["a 0-0"]);
    again.keep("index", b"known");
    assert_eq!((object.kept("index").as_deref(), object.kept("other")), (Some(&b"known"[..]), None));
}

#[test]
fn whatever_a_server_does_once() {
    let bytes = noise(PIECE + 100);
    let server = Server::start(&[("a", &bytes)]);
    let check = |answers: &[Answer]| {
        let cache = tempdir().unwrap();
        // Before the object is found, and after.
        for well in [0, 1] {
            let answers = [&vec![Answer::Well; well], answers].concat();
            server.answers(&answers);
            let cache = cache.path().join(well.to_string());
            assert!(all(&object(&server, &cache).unwrap()).unwrap() == bytes, "{answers:?}");
        }
    };
    check(&[]);
    check(&[Answer::Cut(0)]);
    check(&[Answer::Cut(1), Answer::Cut(77)]);
    check(&[Answer::Short]);
    check(&[Answer::Status("500 Internal Server Error", ""), Answer::Cut(0)]);
    check(&[Answer::Status("503 Service Unavailable", "<Code>SlowDown</Code>")]);
    check(&[Answer::Status("429 Too Many Requests", "")]);
}

#[test]
fn a_server_that_does_not_give_it() {
    let server = Server::start(&[("a", &noise(100)), ("none", &[])]);
    let address = &server.address;
    let check = |name: &str, answer: Answer, expected: &str| {
        let cache = tempdir().unwrap();
        server.answers(&vec![answer; 3]);
        let error = remote(cache.path()).object(&format!("{address}/{name}")).unwrap_err().to_string();
        let error = error.split(", 3 times in ").next().unwrap();
        assert_eq!(error, format!("{address}/{name}: {address}: {expected}"));
    };
    check("b", Answer::Well, "it answers 404 Not Found: there is no such object; check its name");
    check(
        "a",
        Answer::Status("403 Forbidden", ""),
        "it answers 403 Forbidden: this file may not be read without a login",
    );
    let whole =
        "it sends the whole file, not the part that is asked for; download the file, or use a server that knows ranges";
    check("a", Answer::Whole, whole);
    check("a", Answer::Later, "it sends another part than bytes 0..1: \"bytes 1-1/100\"");
    check("a", Answer::Status("502 Bad Gateway", ""), "it answers 502 Bad Gateway");
    check("a", Answer::Cut(0), "the connection was cut");
    let empty = "it answers 416 Range Not Satisfiable: it is empty, or shorter than before";
    check("a", Answer::Status("416 Range Not Satisfiable", ""), empty);
}

#[test]
fn an_object_that_changes_ends_the_run() {
    let cache = tempdir().unwrap();
    let bytes = noise(2 * PIECE);
    let server = Server::start(&[("a", &bytes)]);
    let first = object(&server, cache.path()).unwrap();
    let mut found = [0; 10];
    first.fill(0, &mut found).unwrap();
    let other: Vec<u8> = bytes.iter().rev().copied().collect();
    server.put("a", &other);
    // What the cache has is that of the old one.
    first.fill(10, &mut found).unwrap();
    assert_eq!(found, bytes[10..20]);
    let error = first.fill(PIECE as u64, &mut found).unwrap_err().to_string();
    let changed = "it has changed since this run first read it; start the run again to train on the new one";
    assert_eq!(error, format!("{0}/a: {0}: {changed}", server.address));
    assert!(all(&object(&server, cache.path()).unwrap()).unwrap() == other);
}

#[test]
fn no_server_is_waited_for_without_end() {
    let cache = tempdir().unwrap();
    let bytes = noise(PIECE);
    let server = Server::start(&[("a", &bytes)]);
    let remote = Remote::new(&RemoteOptions { timeout: Duration::from_millis(300), ..options(cache.path()) }).unwrap();
    let object = remote.object(&format!("{}/a", server.address)).unwrap();
    server.answers(&vec![Answer::Silent; 9]);
    let error = object.fill(0, &mut [0; 10]).unwrap_err().to_string();
    assert!(error.contains("nothing came for 0.3 s, once in "), "{error}");
    // Nobody listens.
    let closed = test_support::free_port();
    let error = remote.object(&format!("http://127.0.0.1:{closed}/a")).unwrap_err().to_string();
    assert!(error.contains("efused") && error.ends_with("check the address, the server and the network"), "{error}");
}

#[test]
fn what_the_cache_has_is_read_without_a_server() {
    let cache = tempdir().unwrap();
    let bytes = noise(2 * PIECE);
    let server = Server::start(&[("a", &bytes)]);
    let address = format!("{}/a", server.address);
    let open = |timeout: u64| {
        let options = RemoteOptions { timeout: Duration::from_millis(timeout), ..options(cache.path()) };
        let remote = Remote::new(&options).unwrap();
        let object = remote.object(&address).unwrap();
        (remote, object)
    };
    // The version that was opened last is the one to go on with.
    server.put("a", &noise(7));
    open(20_000).1.fill(0, &mut [0; 7]).unwrap();
    server.put("a", &bytes);
    let (remote, object) = open(20_000);
    object.fill(0, &mut [0; 7]).unwrap();
    assert_eq!(remote.warnings(), []);
    drop(server);
    let (remote, object) = open(500);
    let mut found = [0; 10];
    object.fill(PIECE as u64 - 10, &mut found).unwrap();
    assert_eq!((object.length(), found.as_slice()), (bytes.len() as u64, &bytes[PIECE - 10..PIECE]));
    let warnings = remote.warnings();
    assert!(
        warnings[0].0.starts_with(&address) && warnings[0].0.ends_with("the version in the cache is read"),
        "{warnings:?}"
    );
    assert!(object.fill(PIECE as u64, &mut found).unwrap_err().to_string().contains("efused"));
}

#[test]
fn the_cache_is_bounded() {
    let cache = tempdir().unwrap();
    let bytes = noise(12 * PIECE);
    let server = Server::start(&[("a", &bytes)]);
    let limit = 4 * PIECE as u64;
    let remote = Remote::new(&RemoteOptions { limit, ..options(cache.path()) }).unwrap();
    let object = remote.object(&format!("{}/a", server.address)).unwrap();
    let mut found = vec![0; PIECE / 2];
    for round in 0..3 {
        for place in (0..24).map(|place| place * 7 % 24 * PIECE / 2) {
            object.fill(place as u64, &mut found).unwrap();
            assert!(found == bytes[place..place + PIECE / 2], "{round} {place}");
            let size = size(cache.path());
            // And the description of the object, and the size.
            assert!(size <= limit + 1000, "{size}");
        }
    }
    let warning = "the cache keeps 5 MB of the data's 13 MB, so each epoch fetches the rest again";
    assert_eq!(remote.warnings(), [(warning.to_owned(), "raise `cache_limit` if the disk has room")]);
}

#[test]
fn many_threads_fetch_each_piece_once() {
    let cache = tempdir().unwrap();
    let bytes = noise(6 * PIECE);
    let server = Server::start(&[("a", &bytes)]);
    let objects = [object(&server, cache.path()).unwrap(), object(&server, cache.path()).unwrap()];
    assert_eq!(server.requests().len(), 2);
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let object = &objects[thread % 2];
            let bytes = &bytes;
            scope.spawn(move || {
                let mut found = vec![0; 1000];
                for piece in (0..6).map(|step| (step + thread) % 6) {
                    object.fill((piece * PIECE) as u64, &mut found).unwrap();
                    assert!(found == bytes[piece * PIECE..piece * PIECE + 1000]);
                }
            });
        }
    });
    let requests = server.requests();
    assert_eq!(requests.len(), 6, "{requests:?}");
}
