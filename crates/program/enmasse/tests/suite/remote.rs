//! Data on servers: runs have the bits of runs on the same files, and every fault ends them with its cause.

/// Of its answers, these tests need few.
#[allow(dead_code)]
#[path = "../../../../support/remote/tests/suite/server.rs"]
mod server;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::common::runs::{arguments, assert_same};
use crate::common::{Ended, enmasse, failed, files, finish, images, program, write_archive};
use server::{Answer, Server};

/// The same images in a packed file and in archives, and a folder for runs. It is removed on drop.
struct Data {
    folder: tempfile::TempDir,
}

impl Data {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = images(folder.path(), 20);
        let own = Data { folder };
        fs::create_dir_all(own.served().join("shards")).unwrap();
        enmasse(&["data", "pack", &data.display().to_string(), &own.local("flowers.enmasse")]).well();
        let mut names: Vec<(String, String)> = files(&data)
            .iter()
            .map(|path| path.strip_prefix(&data).unwrap().to_str().unwrap().split_once('/').unwrap())
            .map(|(class, name)| (class.to_owned(), name.to_owned()))
            .collect();
        names.sort_by(|one, other| (&one.1, &one.0).cmp(&(&other.1, &other.0)));
        for (number, names) in names.chunks(20).enumerate() {
            write_archive(&own.served().join(format!("shards/{number:03}.tar")), &data, names);
        }
        own
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The folder of the data.
    fn served(&self) -> PathBuf {
        self.path("served")
    }

    fn local(&self, name: &str) -> String {
        self.served().join(name).display().to_string()
    }

    fn serve(&self) -> Server {
        let server = Server::start(&[]);
        for path in files(&self.served()) {
            let name = path.strip_prefix(self.served()).unwrap().to_str().unwrap().to_owned();
            server.put(&name, &fs::read(path).unwrap());
        }
        server
    }

    /// A run of two epochs, which shares a cache with the others.
    fn train(&self, data: &str, run: &str, others: &[&str]) -> Command {
        let cache = self.path("cache").display().to_string();
        let fixed = ["--epochs", "2", "--lr", "0.001", "--cache-dir", &cache];
        let mut command = program();
        command.args(arguments(Path::new(data), &self.path(run), &[&fixed, others].concat()));
        command
    }
}

/// The warnings of a run, up to their first comma.
fn warnings(ended: &Ended) -> Vec<&str> {
    let lines = ended.stderr.lines().filter_map(|line| line.strip_prefix("warning: "));
    lines.map(|line| line.split(',').next().unwrap_or(line)).collect()
}

#[test]
fn a_run_on_addresses_has_the_bits_of_one_on_files() {
    let data = Data::new();
    let server = data.serve();
    let address = server.address.clone();
    for (name, shards) in [("flowers.enmasse", "flowers.enmasse"), ("shards", "shards/{000..002}.tar")] {
        let plain = data.path(&format!("{name}-plain"));
        finish(&mut data.train(&data.local(name), &format!("{name}-plain"), &["--devices", "cpu:2"])).well();
        let check = |run: &str, others: &[&str], expected: &[&str]| {
            let run = format!("{name}-{run}");
            let ended = finish(&mut data.train(&format!("{address}/{shards}"), &run, others)).well();
            assert_eq!(warnings(&ended), expected, "{run}");
            assert_same(&plain, &data.path(&run));
            let saved = fs::read_to_string(data.path(&run).join("config.toml")).unwrap();
            assert!(saved.contains(&format!("data = \"{address}/{shards}\"")), "{saved}");
            server.requests()
        };
        let none = "the cache keeps 0 MB of the data's 1 MB";
        assert!(
            !check("uncached", &["--devices", "cpu:1", "--shards", "2", "--cache-limit", "0MB"], &[none]).is_empty()
        );
        let each = |server: &[String]| server.iter().filter(|request| !request.ends_with(" 0-0")).count();
        // Each object is one piece, which one of the ranks fetches for all.
        let objects = if name == "shards" { 3 } else { 1 };
        assert_eq!(each(&check("processes", &["--devices", "cpu:2"], &[])), objects);
        assert_eq!(each(&check("threads", &["--devices", "cpu:2", "--ranks", "thread"], &[])), 0);
    }
    // Without the server the cache is enough.
    drop(server);
    let data_set = format!("{address}/flowers.enmasse");
    let ended = finish(&mut data.train(&data_set, "offline", &["--devices", "cpu:1", "--shards", "2"])).well();
    assert!(warnings(&ended)[0].starts_with(&data_set), "{ended:?}");
    assert_same(&data.path("flowers.enmasse-plain"), &data.path("offline"));
}

#[test]
fn other_commands_take_addresses() {
    let data = Data::new();
    let server = data.serve();
    let cache = data.path("cache").display().to_string();
    let run = data.path("run").display().to_string();
    let address = |name: &str| format!("{}/{name}", server.address);
    finish(&mut data.train(&address("shards/{000..002}.tar"), "run", &["--devices", "cpu:1"])).well();
    // The last line in JSON, without where the data lie and how long it took.
    let last = |arguments: &[&str]| {
        let mut ended = enmasse(&[arguments, &["--json", "--cache-dir", &cache]].concat()).well();
        for place in [&server.address, &data.local("")] {
            ended.stdout = ended.stdout.replace(place.trim_end_matches('/'), "");
        }
        let mut found: Value = ended.json().pop().unwrap();
        for key in ["seconds", "samples_per_second"] {
            found.as_object_mut().unwrap().remove(key);
        }
        found
    };
    let check = |before: &[&str], remote: &str, local: &str| {
        let [remote, local] = [address(remote), data.local(local)].map(|name| last(&[before, &[&name]].concat()));
        assert_eq!(remote, local, "{before:?}");
    };
    check(&["eval", &run], "flowers.enmasse", "flowers.enmasse");
    check(&["eval", &run], "shards/{001,002}.tar", "shards/{001,002}.tar");
    check(&["predict", &run], "flowers.enmasse", "flowers.enmasse");
    check(&["data", "stats"], "flowers.enmasse", "flowers.enmasse");
    check(&["data", "stats"], "shards/001.tar", "shards/001.tar");
    check(&["data", "check"], "flowers.enmasse", "flowers.enmasse");
    // The validation part of the run itself.
    assert_eq!(last(&["eval", &run])["samples"], 12);
    // Regression test: an older version was read without a word.
    let packed = address("flowers.enmasse");
    drop(server);
    for words in [&["eval", &run, &packed][..], &["eval", &run], &["predict", &run, &packed]] {
        let ended = enmasse(&[words, &["--json", "--cache-dir", &cache]].concat()).well();
        let told = ended.stderr.lines().filter(|line| line.contains("the version in the cache is read"));
        assert!(told.count() == 1, "{words:?}: {}", ended.stderr);
    }
}

/// `doctor` told to compare the copy with its source, whatever the warning was.
#[test]
fn a_warning_of_the_cache_has_the_remedy_of_an_incomplete_copy() {
    let data = Data::new();
    let server = data.serve();
    let mut command = program();
    command.args(["doctor", "--json", "--data", &format!("{}/flowers.enmasse", server.address)]);
    command.env("ENMASSE_CACHE", data.path("cache"));
    let mut warnings = || {
        let report = finish(&mut command).json().pop().unwrap();
        let sections = report["sections"].as_array().unwrap();
        let found = sections.iter().flat_map(|section| section["findings"].as_array().unwrap());
        found.filter(|finding| finding["name"] == "warning").cloned().collect::<Vec<Value>>()
    };
    assert_eq!(warnings(), [Value::Null; 0]);
    drop(server);
    let found = warnings();
    assert!(found[0]["text"].as_str().unwrap().ends_with("the version in the cache is read"), "{found:?}");
    assert_eq!(found[0]["remedy"], "if the data may have changed, start again when the server answers");
}

#[test]
fn faults_of_servers_end_runs() {
    let data = Data::new();
    let server = data.serve();
    let address = |name: &str| format!("{}/{name}", server.address);
    let check = |name: &str, others: &[&str], answers: &[Answer], code: i32, expected: &str| {
        server.answers(answers);
        let ended = finish(&mut data.train(&address(name), "run", &[&["--devices", "cpu:1"], others].concat()));
        failed(&ended, code, &[&server.address, expected]);
    };
    let missing = "it answers 404 Not Found: there is no such object; check its name";
    check("none", &[], &[], 1, missing);
    check("none.tar", &[], &[], 1, missing);
    check("shards/*.tar", &[], &[], 1, "a server tells of no other files: name each, as in {000..099}.tar");
    check(
        "list.csv",
        &[],
        &[],
        1,
        "of servers only packed files, archives of WebDataset (.tar) and Parquet files are read",
    );
    check("shards/000.tar", &["--stage", "/tmp"], &[], 2, "is read through a cache on the disk already");
    let whole =
        "it sends the whole file, not the part that is asked for; download the file, or use a server that knows ranges";
    check("flowers.enmasse", &[], &vec![Answer::Whole; 9], 1, whole);
    // A server that stalls in the middle of an epoch, or of an archive that is searched.
    let stalls = |well: usize| [vec![Answer::Well; well], vec![Answer::Silent; 99]].concat();
    let limits = ["--cache-limit", "0MB", "--timeout", "3", "--on-bad-sample", "skip"];
    let silent = "nothing came for 1 s, once in ";
    check("flowers.enmasse", &limits, &stalls(90), 1, silent);
    check("shards/000.tar", &limits, &stalls(1), 1, silent);
}

/// A server of S3's protocol. Dropped, it ends.
struct S3 {
    child: Child,
    /// Its address, and the two keys of a user who may read.
    told: Vec<String>,
}

impl S3 {
    fn start(folder: &Path) -> Option<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/s3.py");
        let mut command = Command::new(test_support::s3()?);
        let command =
            command.arg(script).arg(folder).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let told: Vec<String> = lines.take(3).map_while(Result::ok).collect();
        let server = S3 { child, told };
        assert_eq!(server.told.len(), 3, "the server did not start");
        Some(server)
    }

    /// A command that knows the server, with other variables beside these.
    fn known(&self, command: Command, others: &[(&str, &str)]) -> Ended {
        let names = ["AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
        let mut command = command;
        command.envs(names.iter().zip(&self.told)).envs(others.iter().copied());
        finish(&mut command)
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        // It ends with its input.
        self.child.stdin.take();
        let _ = self.child.wait();
    }
}

#[test]
fn buckets_are_read_with_signatures() {
    let data = Data::new();
    let Some(server) = S3::start(&data.served()) else { return };
    for (local, remote) in [
        ("flowers.enmasse", &["s3://data/flowers.enmasse"][..]),
        ("shards", &["s3://data/shards/{000..002}.tar", "s3://data/shards/*.tar", "s3://data/shards/"]),
    ] {
        let plain = format!("{local}-plain");
        finish(&mut data.train(&data.local(local), &plain, &["--devices", "cpu:1", "--shards", "2"])).well();
        for (number, remote) in remote.iter().enumerate() {
            let run = format!("{local}-{number}");
            server.known(data.train(remote, &run, &["--devices", "cpu:2"]), &[]).well();
            assert_same(&data.path(&plain), &data.path(&run));
        }
    }
    let check = |address: &str, others: &[(&str, &str)], expected: &str| {
        let ended = server.known(data.train(address, "run", &["--devices", "cpu:1"]), others);
        failed(&ended, 1, &[address, expected]);
    };
    let packed = "s3://data/flowers.enmasse";
    let credentials = ": the credentials are wrong, or may not read this; check AWS_ACCESS_KEY_ID";
    check(packed, &[("AWS_SECRET_ACCESS_KEY", "wrong")], &format!("SignatureDoesNotMatch{credentials}"));
    check(packed, &[("AWS_ACCESS_KEY_ID", "wrong")], &format!("InvalidAccessKeyId{credentials}"));
    check("s3://data/none", &[], "NoSuchKey: there is no such object; check its name");
    check("s3://none/a.tar", &[], "NoSuchBucket: there is no such bucket; check its name and AWS_ENDPOINT_URL");
    check("s3://data/none/", &[], "there are no archives (.tar) and no Parquet files directly in this folder");
    check("s3://data/none-*.tar", &[], "no file in s3://data is called none-*.tar");
    check(packed, &[("AWS_ENDPOINT_URL", "http://127.0.0.1:1")], "check AWS_ENDPOINT_URL, AWS_REGION and the network");
}
