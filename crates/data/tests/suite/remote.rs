//! Archives on a server: what is known of them, and their versions.

/// Of its answers, these tests need none.
#[allow(dead_code)]
#[path = "../../../remote/tests/suite/server.rs"]
mod server;

use std::fs;
use std::path::Path;

use enmasse_data::{Dataset, OpenOptions, RemoteOptions, open};
use server::Server;
use tempfile::tempdir;

use crate::shards::numbered;

/// The files below a folder with this extension.
fn files(folder: &Path, extension: &str) -> Vec<std::path::PathBuf> {
    let objects = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    let files = objects.flat_map(|object| fs::read_dir(object).unwrap().map(|entry| entry.unwrap().path()));
    files.filter(|path| path.extension().is_some_and(|own| own == extension)).collect()
}

#[test]
fn archives_are_searched_once_for_each_version() {
    let cache = tempdir().unwrap();
    let server = Server::start(&[]);
    let archives = [0, 10].map(|first| numbered(first, 10, &["a", "b"]));
    server.put("0.tar", &archives[0]);
    server.put("1.tar", &archives[1]);
    let options = OpenOptions {
        remote: RemoteOptions { cache: Some(cache.path().to_owned()), ..RemoteOptions::default() },
        ..OpenOptions::default()
    };
    let opened = || open(Path::new(&format!("{}/{{0..1}}.tar", server.address)), &options).unwrap();
    let requests = || {
        let mut found = server.requests();
        found.sort();
        found
    };
    let first = opened();
    assert_eq!((first.train.len(), first.validation.len(), first.classes.concat().as_str()), (16, 4, "ab"));
    let looks = ["0.tar 0-0", "1.tar 0-0"];
    let all = [0, 1].map(|number| format!("{number}.tar 0-{}", archives[number].len() - 1));
    assert_eq!(requests(), [looks[0], &all[0], looks[1], &all[1]]);
    let names = |data: &dyn Dataset| (0..data.len()).map(|index| data.name(index)).collect::<Vec<_>>();
    assert_eq!(first.train.name(0), format!("{}/0.tar/000000.jpg", server.address));

    // Where their samples lie is known without a piece of them.
    files(cache.path(), "piece").iter().for_each(|piece| fs::remove_file(piece).unwrap());
    let again = opened();
    assert_eq!(requests(), looks);
    assert_eq!(names(again.train.as_ref()), names(first.train.as_ref()));
    assert_eq!(again.train.fingerprint(), first.train.fingerprint());
    again.train.read(3).unwrap();
    assert_eq!(requests().len(), 1);

    // A new version with the same names is not what an earlier rank has opened.
    server.put("1.tar", &archives[1]);
    let other = opened();
    assert_eq!(names(other.train.as_ref()), names(first.train.as_ref()));
    assert!(first.train.fingerprint().is_some() && other.train.fingerprint() != first.train.fingerprint());
    assert_ne!(first.train.fingerprint(), first.validation.fingerprint());
}
