//! Single files from a server that fails in every way.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use enmasse_remote::fetch::{Event, FetchError, Fetcher, RemoteFile, git_digest, sha256_of};
use enmasse_system::files::Lock;

use super::server::{Answer, Server};
use super::{below, noise};

const LENGTH: usize = 5000;
/// The first digits of the SHA-256 of the file, as they stand in the names of files.
const DIGEST: &str = "b16096a1";

fn fetch_within(timeout: Duration, file: &RemoteFile, folder: &Path) -> Result<(), FetchError> {
    let [target, part, lock] = places(folder);
    Fetcher::default().timeout(timeout).fetch_file(file, &target, (&part, &lock), &mut |_| {})
}

fn fetch(file: &RemoteFile, folder: &Path) -> Result<(), FetchError> {
    fetch_within(Duration::from_secs(10), file, folder)
}

/// The file, what is not whole, and the lock.
fn places(folder: &Path) -> [PathBuf; 3] {
    ["deep/a.pth", "deep/.a.part", "locks/a"].map(|name| folder.join(name))
}

fn file_of(server: &Server, sha256: &str) -> RemoteFile {
    RemoteFile { url: format!("{}/a.pth", server.address), sha256: sha256.to_owned(), ..RemoteFile::default() }
}

#[track_caller]
fn whole(folder: &Path) {
    assert_eq!(below(folder), ["deep", "deep/a.pth", "locks", "locks/a"]);
    assert!(fs::read(folder.join("deep/a.pth")).unwrap() == noise(LENGTH));
}

#[test]
fn whatever_a_server_does_once() {
    let bytes = noise(LENGTH);
    let check = |sha256: &str, answers: &[Answer], requests: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(&[("a.pth", &bytes)], answers);
        fetch(&file_of(&server, sha256), folder.path()).unwrap();
        whole(folder.path());
        assert_eq!(server.requests(), requests, "{answers:?}");
        // What is there is not fetched.
        fetch(&file_of(&server, sha256), folder.path()).unwrap();
        assert_eq!(server.requests(), requests);
    };
    let (first, rest) = ("/files/a.pth", "/files/a.pth from 1000");
    check(DIGEST, &[], &[first]);
    check("", &[], &[first]);
    check(DIGEST, &[Answer::Cut(1000)], &[first, rest]);
    // Without a digest the rest may be that of another file.
    check("", &[Answer::Cut(1000)], &[first, first]);
    check(DIGEST, &[Answer::Cut(1000), Answer::All], &[first, rest]);
    check(DIGEST, &[Answer::Cut(1000), Answer::Status("416 Range Not Satisfiable")], &[first, rest, first]);
    check(DIGEST, &[Answer::Status("503 Service Unavailable")], &[first, first]);
}

#[test]
fn a_server_that_does_not_give_it() {
    let bytes = noise(LENGTH);
    let check = |answers: &[Answer], expected: &str| {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(&[("a.pth", &bytes)], answers);
        let error = fetch(&file_of(&server, DIGEST), folder.path()).unwrap_err().to_string();
        assert_eq!(error, format!("a.pth could not be fetched: {}/a.pth: {expected}", server.address));
        assert!(!folder.path().join("deep/a.pth").exists(), "{answers:?}");
    };
    check(&[Answer::Status("401 Unauthorized")], "it answers 401 Unauthorized");
    check(&[Answer::Status("404 Not Found")], "it answers 404 Not Found");
    check(&[Answer::Page], "it answers with a web page, as a login or a proxy does");
    check(&[Answer::Endless], "it does not tell the length of the file");
    check(&[Answer::Length(1 << 40)], "it has 1099511627776 bytes there, more than 68719476736");
    check(&[Answer::Other], &format!("its SHA-256 is f302a3f8, not {DIGEST}"));
    check(&vec![Answer::Cut(0); 4], "the connection was cut");
    let server = Server::start(&[("a.pth", &bytes)], &vec![Answer::Silent; 8]);
    let folder = tempfile::tempdir().unwrap();
    let error = fetch_within(Duration::from_millis(50), &file_of(&server, DIGEST), folder.path()).unwrap_err();
    assert!(error.to_string().ends_with("/a.pth: nothing came for 0.05 s"), "{error}");
}

/// Seen before anything is written. The file system of shared memory is small.
#[test]
fn a_disk_without_space() {
    let bytes = noise(LENGTH);
    let server = Server::start(&[("a.pth", &bytes)], &[Answer::Length(60 << 30)]);
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let error = fetch(&file_of(&server, DIGEST), folder.path()).unwrap_err().to_string();
    assert!(error.contains("/deep: it needs 64425 MB, and ") && error.contains("free some space"), "{error}");
    assert_eq!(below(folder.path()), ["deep", "locks", "locks/a"]);
}

/// A process that ended left some bytes; those of another file are found out.
#[test]
fn an_earlier_attempt_is_continued() {
    let bytes = noise(LENGTH);
    let check = |left: &[u8], sha256: &str, requests: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(&[("a.pth", &bytes)], &[]);
        let [_, part, _] = places(folder.path());
        fs::create_dir(part.parent().unwrap()).unwrap();
        fs::write(part, left).unwrap();
        fetch(&file_of(&server, sha256), folder.path()).unwrap();
        whole(folder.path());
        assert_eq!(server.requests(), requests);
    };
    let first = "/files/a.pth";
    check(&bytes[..70], DIGEST, &["/files/a.pth from 70"]);
    check(&[1; 70], DIGEST, &["/files/a.pth from 70", first]);
    check(&bytes[..70], "", &[first]);
}

#[test]
fn a_token_is_for_its_own_server() {
    let bytes = noise(LENGTH);
    let other = Server::start(&[("a.pth", &bytes)], &[]);
    // Another name of the same machine.
    let there = other.address.replace("127.0.0.1", "localhost");
    let server = Server::start(&[("a.pth", &bytes)], &[Answer::Redirect(format!("{there}/a.pth"))]);
    let folder = tempfile::tempdir().unwrap();
    let file = RemoteFile { token: Some("secret".to_owned()), ..file_of(&server, DIGEST) };
    fetch(&file, folder.path()).unwrap();
    whole(folder.path());
    assert_eq!(
        (server.requests(), other.requests()),
        (vec!["/files/a.pth with a token".to_owned()], vec!["/files/a.pth".to_owned()],)
    );
}

#[test]
fn another_process_is_waited_for() {
    let bytes = noise(LENGTH);
    let server = Server::start(&[("a.pth", &bytes)], &[]);
    let folder = tempfile::tempdir().unwrap();
    let [target, part, lock] = places(folder.path());
    [&part, &lock].iter().for_each(|path| fs::create_dir_all(path.parent().unwrap()).unwrap());
    let mut held = Some(Lock::take(&lock).unwrap().unwrap());
    let finish = &mut |event: Event| {
        if let Event::Waiting { .. } = event {
            fs::write(&target, &bytes).unwrap();
            held = None;
        }
    };
    Fetcher::default().fetch_file(&file_of(&server, DIGEST), &target, (&part, &lock), finish).unwrap();
    whole(folder.path());
    assert!(server.requests().is_empty());
    // One that gets no further is given up.
    fs::remove_file(&target).unwrap();
    let _held = Lock::take(&lock).unwrap().unwrap();
    let error = fetch_within(Duration::from_millis(20), &file_of(&server, DIGEST), folder.path()).unwrap_err();
    let stuck = "another process is fetching it, and has received nothing for a long time; end it, and start again";
    assert_eq!(error.to_string(), format!("{}: {stuck}", target.display()));
}

#[test]
fn short_answers() {
    let server = Server::start(&[("a", b"short")], &[Answer::Status("503 Service Unavailable")]);
    let ask = |name: &str, limit| Fetcher::default().ask(&format!("{}/{name}?b=c", server.address), None, limit);
    // The server knows no file with a query.
    assert!(!ask("a", 5).unwrap().is_well);
    let ask = |name: &str, limit| Fetcher::default().ask(&format!("{}/{name}", server.address), None, limit);
    let answer = ask("a", 5).unwrap();
    assert!(answer.is_well && answer.body == b"short", "{answer:?}");
    assert_eq!(ask("b", 5).unwrap().status, "404 Not Found");
    let error = ask("a", 4).unwrap_err().to_string();
    assert!(error.ends_with("/a: its answer has more than 4 bytes"), "{error}");
}

#[test]
fn digests() {
    // As git hash-object and sha256sum print them.
    assert_eq!(git_digest(b"hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "hello\n").unwrap();
    let expected = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
    assert_eq!(sha256_of(file.path()).unwrap(), expected);
}
