//! `enmasse data fetch`: what it says, and where it looks. The library's own tests download real archives.

use std::fs::{File, create_dir_all};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use serde_json::json;

use crate::common::{enmasse, failed, finish, program, refused};

/// A server that refuses everything. Gives its address, and the first line of each request.
fn server() -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://127.0.0.1:{}", listener.local_addr().unwrap().port());
    let (send, requests) = channel();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let first = lines.next().unwrap_or_default();
            lines.find(|line| line.is_empty());
            let _ = send.send(first);
            let _ = write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    (address, requests)
}

#[test]
fn servers_that_do_not_have_it() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display().to_string();
    let ((one, asked), (two, asked_next)) = (server(), server());
    let ended = enmasse(&["data", "fetch", "CIFAR-10", &place, "--mirror", &one, "--mirror", &format!("{two}/a/")]);
    let archive = "cifar-10-python.tar.gz";
    let first = format!("{one}/{archive}");
    let second = format!("{two}/a/{archive}");
    let problem = format!(
        "{archive} could not be fetched: {first}: it answers 404 Not Found; {second}: it answers 404 Not Found"
    );
    failed(&ended, 1, &[&problem]);
    let told = [format!("asking {first}"), format!("warning: {first}: it answers 404 Not Found")];
    assert!(told.iter().all(|line| ended.stderr.lines().any(|said| said == line)), "{ended:?}");
    assert_eq!(asked.recv().unwrap(), format!("GET /{archive} HTTP/1.1"));
    assert_eq!(asked_next.recv().unwrap(), format!("GET /a/{archive} HTTP/1.1"));
    assert!(!folder.path().join("cifar-10-batches-py").exists());
}

#[test]
fn a_proxy_is_asked_instead() {
    let folder = tempfile::tempdir().unwrap();
    let (proxy, asked) = server();
    let mut command = program();
    command.args(["data", "fetch", "mnist", &folder.path().display().to_string(), "--mirror", "http://mirror.example"]);
    for name in ["ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "NO_PROXY", "no_proxy"] {
        command.env_remove(name);
    }
    failed(&finish(command.env("http_proxy", &proxy)), 1, &["http://mirror.example/train-images-idx3-ubyte.gz: "]);
    let request = asked.recv().unwrap();
    assert!(request.contains("mirror.example"), "{request}");
}

#[test]
fn sets_that_are_not_fetched() {
    let known = "the known data sets are cifar10, cifar100, mnist, fashion-mnist, flower-photos,";
    refused(&enmasse(&["data", "fetch", "svhn"]), 2, &["\"svhn\" cannot be fetched", known]);
    let ended = enmasse(&["data", "fetch", "ImageNet-1k"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    for step in ["https://image-net.org", "imagenet-object-localization-challenge.zip", "enmasse train FOLDER"] {
        assert!(ended.stderr.contains(step), "{step}: {ended:?}");
    }
}

/// Files of zeros with the sizes of MNIST's.
fn mnist(folder: &Path, images: u32) {
    create_dir_all(folder).unwrap();
    for (part, count) in [("train", images), ("t10k", 10_000)] {
        let file = |kind: &str, head: &[u32], bytes: u64| {
            let mut file = File::create(folder.join(format!("{part}-{kind}-ubyte"))).unwrap();
            head.iter().for_each(|number| file.write_all(&number.to_be_bytes()).unwrap());
            file.set_len(4 * head.len() as u64 + bytes).unwrap();
        };
        file("images-idx3", &[0x803, count, 28, 28], u64::from(count) * 28 * 28);
        file("labels-idx1", &[0x801, count], count.into());
    }
}

#[test]
fn what_is_there_is_told_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display().to_string();
    let raw = folder.path().join("MNIST/raw");
    mnist(&raw, 60_000);
    let ended = enmasse(&["data", "fetch", "mnist", &place]).well();
    assert_eq!(ended.stderr, format!("{place}/MNIST is there already\n"));
    assert_eq!(ended.stdout, format!("MNIST: 70,000 images in 10 classes\nenmasse train {place}/MNIST\n"));
    let ended = enmasse(&["data", "fetch", "mnist", &place, "--json"]).well();
    let data = format!("{place}/MNIST");
    let object = json!({
        "event": "fetch", "data": data, "name": "mnist", "samples": 70_000, "classes": 10, "fetched": false
    });
    assert_eq!(ended.json(), [object]);
    mnist(&raw, 50_000);
    let advice =
        format!("it has 60,000 images, not 70000; remove {place}/MNIST to fetch it again, or name another DIR");
    refused(&enmasse(&["data", "fetch", "mnist", &place]), 1, &[&advice]);
    std::fs::remove_file(raw.join("train-labels-idx1-ubyte")).unwrap();
    refused(&enmasse(&["data", "fetch", "mnist", &place]), 1, &["train-labels-idx1-ubyte", "to fetch it again"]);
}
