//! Fetches small data sets from a server on loopback that fails in every way.

mod certificates;
mod files;
mod server;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use enmasse_remote::fetch::{Archive, Event, FetchError, Fetcher, Form, KnownSet};
use flate2::Compression;
use flate2::write::GzEncoder;
use ring::digest::{SHA256, digest};
use server::{Answer, Server};

fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A compressed tar file of these paths and contents. The paths are written as they are.
fn tarred(entries: &[(&str, tar::EntryType, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, kind, bytes) in entries {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(*kind);
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        if kind.is_symlink() {
            header.set_link_name("elsewhere").unwrap();
        }
        header.set_cksum();
        builder.append(&header, *bytes).unwrap();
    }
    compressed(&builder.into_inner().unwrap())
}

/// A set whose only archive has these bytes.
fn set(form: Form, bytes: &[u8], unpacked: u64) -> &'static KnownSet {
    let sha256: String = digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let archive = Archive { name: "a.gz", bytes: bytes.len() as u64, sha256: sha256.leak(), form, unpacked };
    let archives = Box::leak(Box::new([archive]));
    Box::leak(Box::new(KnownSet { name: "test", title: "Test", folder: "top", images: 1, mirrors: &[], archives }))
}

/// Bytes that do not get much smaller when they are compressed.
fn noise(count: usize) -> Vec<u8> {
    (0..count as u64).map(|index| (index.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 53) as u8).collect()
}

/// A set of one file, and its archive.
fn one_file() -> (&'static KnownSet, Vec<u8>) {
    let bytes = compressed(&noise(20_000));
    (set(Form::File("raw/one"), &bytes, 20_000), bytes)
}

fn fetch(set: &KnownSet, mirrors: &[&Server], folder: &Path) -> Result<PathBuf, FetchError> {
    fetch_within(Duration::from_secs(10), set, mirrors, folder)
}

fn fetch_within(timeout: Duration, set: &KnownSet, mirrors: &[&Server], folder: &Path) -> Result<PathBuf, FetchError> {
    let mirrors = mirrors.iter().map(|server| server.address.clone()).collect();
    Fetcher::default().mirrors(mirrors).timeout(timeout).fetch(set, folder, &mut |_| {})
}

/// Every file and folder below `folder`, sorted.
fn below(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = vec![folder.to_owned()];
    while let Some(next) = rest.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            found.push(path.strip_prefix(folder).unwrap().display().to_string());
            if path.is_dir() {
                rest.push(path);
            }
        }
    }
    found.sort();
    found
}

#[track_caller]
fn whole(folder: &Path) {
    assert_eq!(below(folder), ["top", "top/raw", "top/raw/one"]);
    assert!(fs::read(folder.join("top/raw/one")).unwrap() == noise(20_000));
}

#[test]
fn whatever_a_server_does_once() {
    let (set, bytes) = one_file();
    let check = |answers: &[Answer], requests: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(&[("a.gz", &bytes)], answers);
        assert_eq!(fetch(set, &[&server], folder.path()).unwrap(), folder.path().join("top"), "{answers:?}");
        whole(folder.path());
        assert_eq!(server.requests(), requests, "{answers:?}");
    };
    let first = "/files/a.gz";
    check(&[], &[first]);
    check(&[Answer::Cut(1000)], &[first, "/files/a.gz from 1000"]);
    check(&[Answer::Cut(1), Answer::Cut(2)], &[first, "/files/a.gz from 1", "/files/a.gz from 3"]);
    // A server that knows no parts begins anew.
    check(&[Answer::Cut(1000), Answer::All], &[first, "/files/a.gz from 1000"]);
    check(&[Answer::Endless], &[first]);
    check(&[Answer::Status("503 Service Unavailable")], &[first, first]);
    check(&[Answer::Cut(0)], &[first, first]);
}

#[test]
fn a_server_that_does_not_give_it() {
    let (set, bytes) = one_file();
    let length = bytes.len();
    let good = Server::start(&[("a.gz", &bytes)], &[]);
    let check = |answers: &[Answer], expected: &str| {
        let server = Server::start(&[("a.gz", &bytes)], answers);
        let folder = tempfile::tempdir().unwrap();
        let address = format!("{}/a.gz", server.address);
        let error = fetch(set, &[&server], folder.path()).unwrap_err().to_string();
        assert_eq!(error, format!("a.gz could not be fetched: {address}: {expected}"), "{answers:?}");
        assert!(!folder.path().join("top").exists(), "{answers:?}");
        // Another server has it, or has the rest of it.
        let refusals = answers.iter().cloned().cycle().take(20).collect::<Vec<_>>();
        let server = Server::start(&[("a.gz", &bytes)], &refusals);
        fetch(set, &[&server, &good], folder.path()).unwrap();
        whole(folder.path());
    };
    check(&[Answer::Status("404 Not Found")], "it answers 404 Not Found");
    check(&[Answer::Status("403 Forbidden")], "it answers 403 Forbidden");
    let busy = Answer::Status("429 Too Many Requests");
    check(&[busy.clone(), busy.clone(), busy.clone(), busy], "it answers 429 Too Many Requests");
    let more = length as u64 + 1;
    let other = format!("it has another file there, of {more} bytes instead of {length}");
    check(&[Answer::Length(more)], &other);
    let zeros: String = digest(&SHA256, &vec![7; length]).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    check(&[Answer::Other], &format!("its SHA-256 is {zeros}, not {}", set.archives[0].sha256));
    check(&[Answer::Cut(10), Answer::Part(3)], "it sends another part than that from byte 10 on");
    check(&vec![Answer::Cut(0); 4], "the connection was cut");
    let around = Server::start(&[], &[]).address.replace("/files", "/elsewhere");
    check(&[Answer::Redirect(around)], "it answers 404 Not Found");
    check(&vec![Answer::Redirect("/files/a.gz".to_owned()); 11], "it redirects again and again");
}

#[test]
fn no_server_is_waited_for_without_end() {
    let (set, bytes) = one_file();
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&[("a.gz", &bytes)], &vec![Answer::Silent; 8]);
    let error = fetch_within(Duration::from_millis(50), set, &[&server], folder.path()).unwrap_err().to_string();
    assert!(error.ends_with("/a.gz: nothing came for 0.05 s"), "{error}");
}

#[test]
fn a_head_without_end_is_not_read_to_its_end() {
    let (set, bytes) = one_file();
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&[("a.gz", &bytes)], &vec![Answer::LongHead; 4]);
    let error = fetch(set, &[&server], folder.path()).unwrap_err().to_string();
    assert!(error.starts_with("a.gz could not be fetched: http://127.0.0.1:"), "{error}");
}

#[test]
fn redirects_are_followed_and_keep_the_range() {
    let (set, bytes) = one_file();
    let other = Server::start(&[("a.gz", &bytes)], &[Answer::Cut(500)]);
    let there = Answer::Redirect(format!("{}/a.gz", other.address));
    let server = Server::start(&[("a.gz", &bytes)], &[there.clone(), there.clone()]);
    let folder = tempfile::tempdir().unwrap();
    fetch(set, &[&server], folder.path()).unwrap();
    whole(folder.path());
    assert_eq!(other.requests(), ["/files/a.gz", "/files/a.gz from 500"]);
}

/// A process that ended left some bytes; those of another archive are found out.
#[test]
fn an_earlier_attempt_is_continued() {
    let (set, bytes) = one_file();
    let check = |left: &[u8], requests: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join(".enmasse-fetch-test");
        fs::create_dir(&place).unwrap();
        fs::write(place.join("a.gz"), left).unwrap();
        let server = Server::start(&[("a.gz", &bytes)], &[]);
        fetch(set, &[&server], folder.path()).unwrap();
        whole(folder.path());
        assert_eq!(server.requests(), requests);
    };
    check(&bytes[..70], &["/files/a.gz from 70"]);
    check(&bytes, &[]);
    check(&vec![1; bytes.len()], &["/files/a.gz"]);
    check(&[1; 70], &["/files/a.gz from 70", "/files/a.gz"]);
    check(&vec![1; bytes.len() + 1], &["/files/a.gz"]);
}

#[test]
fn what_is_there_is_not_fetched() {
    let (set, bytes) = one_file();
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&[("a.gz", &bytes)], &[]);
    for _ in 0..2 {
        fetch(set, &[&server], folder.path()).unwrap();
        whole(folder.path());
    }
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn progress_is_told() {
    let (set, bytes) = one_file();
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&[("a.gz", &bytes)], &[Answer::Cut(1000)]);
    let url = format!("{}/a.gz", server.address);
    let mut told = Vec::new();
    let fetcher = Fetcher::default().mirrors(vec![format!("{}/", server.address)]);
    let tell = &mut |event: Event| match event {
        Event::Received { archive: "a.gz", bytes, total } => told.push((bytes, total)),
        Event::Asking { url: asked } => assert_eq!(asked, url),
        Event::Unpacking { archive: "a.gz" } => told.push((0, 0)),
        other => panic!("{other:?}"),
    };
    fetcher.fetch(set, folder.path(), tell).unwrap();
    let total = bytes.len() as u64;
    assert_eq!((told[0], told[told.len() - 1], told[told.len() - 2]), ((0, total), (0, 0), (total, total)));
    assert!(told.contains(&(1000, total)), "{told:?}");
}

#[test]
fn tls_needs_a_trusted_certificate() {
    let (set, bytes) = one_file();
    let server = Server::start_tls(&[("a.gz", &bytes)], &[]);
    let folder = tempfile::tempdir().unwrap();
    let authorities = tempfile::tempdir().unwrap();
    let authority = authorities.path().join("authority.pem");
    fs::write(&authority, certificates::AUTHORITY).unwrap();
    let error = fetch(set, &[&server], folder.path()).unwrap_err().to_string();
    assert!(error.contains("/a.gz: ") && error.contains("certificate"), "{error}");
    let trusting = |server: &Server| {
        let fetcher = Fetcher::default().mirrors(vec![server.address.clone()]).trust(authority.clone());
        fetcher.fetch(set, folder.path(), &mut |_| {})
    };
    // Not to an address without it.
    let plain = Server::start(&[("a.gz", &bytes)], &[]);
    let down = Server::start_tls(&[("a.gz", &bytes)], &[Answer::Redirect(format!("{}/a.gz", plain.address))]);
    let error = trusting(&down).unwrap_err().to_string();
    assert!(error.ends_with("it redirects to an address without TLS") && plain.requests().is_empty(), "{error}");
    trusting(&Server::start_tls(&[("a.gz", &bytes)], &[Answer::Cut(100)])).unwrap();
    whole(folder.path());
    let fetcher = Fetcher::default().trust(folder.path().join("top/raw/one"));
    let error = fetcher.fetch(set, &folder.path().join("other"), &mut |_| {}).unwrap_err().to_string();
    assert!(error.ends_with("top/raw/one cannot be used: it has no certificates"), "{error}");
}

#[test]
fn archives_are_extracted_within_their_folder() {
    use tar::EntryType::{Directory, Regular, Symlink};
    let check = |entries: &[(&str, tar::EntryType, &[u8])], unpacked: u64, expected: Result<&[&str], &str>| {
        let bytes = tarred(entries);
        let set = set(Form::Tar, &bytes, unpacked);
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        let server = Server::start(&[("a.gz", &bytes)], &[]);
        let found = fetch(set, &[&server], &inner).map(|_| below(&inner)).map_err(|error| error.to_string());
        let expected = expected.map(|names| names.iter().map(|name| name.to_string()).collect::<Vec<_>>());
        assert_eq!(found, expected.map_err(|problem| format!("a.gz: {problem}")));
        assert_eq!(below(folder.path()).iter().filter(|name| !name.starts_with("inner")).count(), 0);
    };
    let three: &[(&str, _, &[u8])] =
        &[("top/", Directory, b""), ("./top/a/b.jpg", Regular, b"image"), ("other", Regular, b"")];
    check(three, 1 << 20, Ok(&["top", "top/a", "top/a/b.jpg"]));
    check(&[("other", Regular, b"")], 1 << 20, Err("it has no folder top"));
    check(&[("top/../../x", Regular, b"")], 1 << 20, Err("top/../../x leads out of the folder"));
    check(&[("/top/x", Regular, b"")], 1 << 20, Err("/top/x leads out of the folder"));
    check(&[("top/x", Symlink, b"")], 1 << 20, Err("top/x is neither a file nor a folder"));
    let long = noise(100_000);
    check(&[("top/x", Regular, &long)], 50_000, Err("it has more bytes than it may when it is decompressed"));
}

#[test]
fn a_single_file_has_a_limit_too() {
    let bytes = compressed(&vec![0; 1 << 20]);
    for (unpacked, expected) in [(1 << 20, true), ((1 << 20) - 1, false)] {
        let set = set(Form::File("one"), &bytes, unpacked);
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(&[("a.gz", &bytes)], &[]);
        assert_eq!(fetch(set, &[&server], folder.path()).is_ok(), expected);
        assert_eq!(folder.path().join("top").exists(), expected);
    }
}

#[test]
fn places_that_cannot_be_written() {
    let (set, bytes) = one_file();
    let server = Server::start(&[("a.gz", &bytes)], &[]);
    let folder = tempfile::tempdir().unwrap();
    let refused = |set: &KnownSet, place: &Path| fetch(set, &[&server], place).unwrap_err().to_string();
    let place = |name: &str| folder.path().join(name);
    fs::write(place("file"), "").unwrap();
    assert!(refused(set, &place("file")).starts_with(&format!("cannot create {}/file: ", folder.path().display())));
    // As in a folder that anybody may write to.
    fs::create_dir_all(place("shared")).unwrap();
    symlink(place("elsewhere"), place("shared/.enmasse-fetch-test")).unwrap();
    let own = "it is another user's, or no folder; choose another place";
    assert!(refused(set, &place("shared")).ends_with(own));
    fs::create_dir_all(place("linked/.enmasse-fetch-test")).unwrap();
    symlink(place("elsewhere"), place("linked/.enmasse-fetch-test/a.gz")).unwrap();
    assert!(refused(set, &place("linked")).contains("cannot write"));
    assert!(!place("elsewhere").exists());
    // More than any file system has.
    let huge = enmasse_remote::fetch::KnownSet {
        archives: Box::leak(Box::new([Archive { unpacked: 1 << 62, ..copy(set) }])),
        ..*set
    };
    let error = refused(&huge, &place("full"));
    assert!(error.contains("it needs 4611686018428 MB, and ") && error.ends_with("or name another folder"), "{error}");
    assert!(server.requests().is_empty());
    // A writer that has no right to; root has every right.
    fs::create_dir(place("read")).unwrap();
    fs::set_permissions(place("read"), fs::Permissions::from_mode(0o500)).unwrap();
    if fs::write(place("read/try"), "").is_err() {
        assert!(refused(set, &place("read")).contains("no permission"));
    }
}

fn copy(set: &KnownSet) -> Archive {
    let Archive { name, bytes, sha256, form, unpacked } = set.archives[0];
    Archive { name, bytes, sha256, form, unpacked }
}

#[test]
fn one_process_at_a_time() {
    let (set, bytes) = one_file();
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&[("a.gz", &bytes)], &[]);
    let mut refused = None;
    let fetcher = Fetcher::default().mirrors(vec![server.address.clone()]);
    let tell = &mut |event: Event| {
        if let Event::Asking { .. } = event {
            refused = Some(fetch(set, &[&server], folder.path()).unwrap_err().to_string());
        }
    };
    fetcher.fetch(set, folder.path(), tell).unwrap();
    let expected = format!("{}: another process is fetching this data set into it", folder.path().display());
    assert_eq!(refused, Some(expected));
    whole(folder.path());
}
