//! Predictions over HTTP: the rows of `predict`, whatever else is asked meanwhile, and an end that loses nothing.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{Running, enmasse, failed, files, images, program, refused, until};
use crate::tasks::{labels, table, train};

/// More than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A program that serves predictions.
struct Served {
    running: Running,
    port: u16,
}

impl Served {
    fn start(arguments: &[&str]) -> Self {
        let mut running = Running::start(program().args(["serve", "--port", "0"]).args(arguments));
        let line = running.line();
        let port =
            line.split_once("http://127.0.0.1:").and_then(|(_, rest)| rest.split_once(';')).map(|(port, _)| port);
        let Some(port) = port.and_then(|port| port.parse().ok()) else {
            panic!("no address: {line} {:?}", running.finish());
        };
        Served { port, running }
    }

    fn connect(&self) -> Client {
        Client::open(self.port).unwrap()
    }

    #[track_caller]
    fn post(&self, path: &str, body: &[u8]) -> (u16, Value) {
        self.connect().ask("POST", path, "image/png", body).unwrap()
    }

    #[track_caller]
    fn get(&self, path: &str) -> (u16, Value) {
        self.connect().ask("GET", path, "", b"").unwrap()
    }
}

/// A connection, for any number of requests.
struct Client(BufReader<TcpStream>);

impl Client {
    fn open(port: u16) -> Option<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Some(Client(BufReader::new(stream)))
    }

    /// The status and the JSON of an answer, or its text. None where the server closes the connection in place of an answer.
    fn ask(&mut self, method: &str, path: &str, kind: &str, body: &[u8]) -> Option<(u16, Value)> {
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
        );
        // It may be refused while it is sent.
        let _ = self.0.get_mut().write_all(&[head.as_bytes(), body].concat());
        let mut line = String::new();
        self.0.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let status = line[9..12].parse().unwrap();
        let mut length = 0;
        while line != "\r\n" {
            line.clear();
            self.0.read_line(&mut line).unwrap();
            if let Some(told) = line.strip_prefix("content-length: ") {
                length = told.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        let text = String::from_utf8(body).unwrap();
        Some((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }
}

/// The images of a folder, in the order of `predict`.
fn images_in(folder: &Path) -> Vec<String> {
    let mut found: Vec<String> = files(folder).iter().map(|path| path.display().to_string()).collect();
    found.retain(|path| path.ends_with(".png") || path.ends_with(".jpg"));
    found.sort();
    found
}

/// A row without the name of its image.
fn nameless(mut row: Value) -> Value {
    row.as_object_mut().unwrap().remove("image").unwrap();
    row
}

fn run_of(data: &Path, run: &str, model: &[&str]) {
    let data = data.display().to_string();
    let settings = ["--epochs", "1", "--max-steps", "2", "--batch", "4", "--devices", "cpu:1"];
    enmasse(&[&["train", &data, "--out", run], &settings[..], model].concat()).well();
}

/// Bits did not depend on the batch alone: convolutions of few images took other algorithms.
#[test]
fn rows_are_those_of_predict_however_many_ask() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 6);
    let paths = images_in(&data);
    let run = folder.path().join("run").display().to_string();
    run_of(&data, &run, &["--model", "resnet18", "--size", "64"]);
    let rows =
        enmasse(&["predict", &run, &data.display().to_string(), "--json", "--batch", "8", "--top", "2"]).well().json();
    assert_eq!(rows.len(), 18);
    let served = Served::start(&[&run, "--top", "2"]);
    let port = served.port;
    let ask = |client: usize| {
        let mut connection = Client::open(port).unwrap();
        for (path, row) in paths.iter().zip(&rows).skip(client % 3).step_by(2) {
            let image = fs::read(path).unwrap();
            let (status, found) = connection.ask("POST", "/predict", "image/jpeg", &image).unwrap();
            assert_eq!((status, nameless(found)), (200, nameless(row.clone())), "{path}");
        }
    };
    thread::scope(|scope| {
        let ask = &ask;
        (0..6).for_each(|client| drop(scope.spawn(move || ask(client))));
    });
    // All at once, as a form.
    let mut form = Vec::new();
    for path in &paths {
        form.extend(format!("--b\r\nContent-Disposition: form-data; name=\"x\"; filename=\"{path}\"\r\n\r\n").bytes());
        form.extend(fs::read(path).unwrap());
        form.extend(b"\r\n");
    }
    form.extend(b"--b--\r\n");
    let (status, found) = served.connect().ask("POST", "/predict", "multipart/form-data; boundary=b", &form).unwrap();
    assert_eq!((status, found), (200, json!(rows)));
    let (_, metrics) = served.get("/metrics");
    let metrics = metrics.as_str().unwrap();
    assert!(metrics.contains("enmasse_serve_batch_images_sum{model=\"run\"} 70\n"), "{metrics}");
    assert!(metrics.contains("enmasse_serve_requests_total{model=\"run\",status=\"200\"} 53\n"), "{metrics}");
}

#[test]
fn labels_and_numbers_of_several_models() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (one, two) = (path("labels"), path("numbers"));
    train(&table(folder.path(), "labels", labels), &one, &["--epochs", "3", "--devices", "cpu:1"]).well();
    let number = |class: &str| if class == "dark" { "1" } else { "2.5" };
    train(
        &table(folder.path(), "size", number),
        &two,
        &["--task", "regression", "--label-column", "size", "--epochs", "2", "--devices", "cpu:1"],
    )
    .well();
    // Keeps the thresholds that the labels of predict are above.
    enmasse(&["eval", &one]).well();
    let served = Served::start(&[&format!("a b={one}"), &two]);
    let (_, models) = served.get("/models");
    let told: Vec<_> =
        models.as_array().unwrap().iter().map(|model| json!([model["name"], model["task"], model["model"]])).collect();
    assert_eq!(told, [json!(["a b", "multi-label", "mlp"]), json!(["numbers", "regression", "mlp"])]);
    let image = &images_in(folder.path())[3];
    let bytes = fs::read(image).unwrap();
    for (run, at) in [(&one, "/predict"), (&one, "/models/a%20b/predict"), (&two, "/models/numbers/predict")] {
        let row = enmasse(&["predict", run, image, "--json"]).well().json().remove(0);
        let expected = Value::Object(
            [("image".to_owned(), "image 0".into())]
                .into_iter()
                .chain(nameless(row).as_object().unwrap().clone())
                .collect(),
        );
        assert_eq!(served.post(at, &bytes), (200, expected), "{at}");
    }
    assert_eq!(served.post("/models/a/predict", &bytes).0, 404);
}

#[test]
fn images_that_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 5);
    let run = folder.path().join("run").display().to_string();
    run_of(&data, &run, &["--model", "mlp", "--size", "12"]);
    let served = Served::start(&[&run, "--max-body", "1"]);
    let png = fs::read(&images_in(&data)[0]).unwrap();
    let mut vast = png.clone();
    vast[16..24].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
    let mut client = served.connect();
    for (body, status) in [
        (&b"no image"[..], 422),
        (b"\xff\xd8\xff", 422),
        (&png[..png.len() / 2], 422),
        (&vast, 422),
        (b"{\"image\": \"aGk=\"}", 422),
        (b"", 400),
        (&png, 200),
    ] {
        let (found, answer) = client.ask("POST", "/predict", "image/png", body).unwrap();
        let line = answer["error"].as_str().unwrap_or_default();
        assert_eq!((found, line.is_empty(), line.contains('\n')), (status, status == 200, false), "{answer}");
    }
    let (status, answer) = served.post("/predict", &vec![0; (1 << 20) + 1]);
    assert_eq!((status, answer), (413, json!({ "error": "the file is too large: the limit is 1 MiB" })));
    assert_eq!(served.get("/health"), (200, json!({ "status": "ready" })));
}

#[test]
fn a_signal_ends_it_when_all_is_answered_and_a_second_one_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 5);
    let run = folder.path().join("run").display().to_string();
    run_of(&data, &run, &["--model", "mlp", "--size", "12"]);
    let image = fs::read(&images_in(&data)[0]).unwrap();
    for signal in [Signal::TERM, Signal::INT] {
        let served = Served::start(&[&run]);
        let port = served.port;
        let (asked, told) = channel();
        let ask = |asked: Sender<()>| {
            let mut client = Client::open(port).unwrap();
            // Until the server refuses, or has closed the connection between two requests.
            while let Some((status, answer)) = client.ask("POST", "/predict", "image/png", &image) {
                assert!(status == 200 || answer == json!({ "error": "the server is stopping" }), "{status} {answer}");
                let _ = asked.send(());
                if status != 200 {
                    return;
                }
            }
        };
        thread::scope(|scope| {
            let ask = &ask;
            for _ in 0..4 {
                let asked = asked.clone();
                scope.spawn(move || ask(asked));
            }
            (0..8).for_each(|_| told.recv_timeout(TIMEOUT).unwrap());
            served.running.signal(signal);
        });
        let ended = served.running.finish();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(ended.stderr.contains("stopping: requests that were taken are answered"), "{}", ended.stderr);
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    }
    let served = Served::start(&[&run]);
    let mut slow = served.connect();
    let head = "POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n";
    slow.0.get_mut().write_all(head.as_bytes()).unwrap();
    let mut line = String::new();
    slow.0.read_line(&mut line).unwrap();
    assert!(line.starts_with("HTTP/1.1 100 "), "{line}");
    served.running.signal(Signal::TERM);
    until("the end of the listener", || Client::open(served.port).is_none().then_some(()));
    served.running.signal(Signal::TERM);
    assert_eq!(served.running.finish().code, Some(143));
}

#[test]
fn servers_that_cannot_start() {
    let folder = tempfile::tempdir().unwrap();
    let data = images(folder.path(), 5);
    let run = folder.path().join("run").display().to_string();
    run_of(&data, &run, &["--model", "mlp", "--size", "12"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    failed(
        &enmasse(&["serve", &run, "--port", &port]),
        1,
        &["cannot listen on 127.0.0.1", &port, "choose another --port"],
    );
    refused(&enmasse(&["serve", &run, &run, "--port", "0"]), 2, &["run: two models have this name", "other="]);
    refused(&enmasse(&["serve", &format!("={run}"), "--port", "0"]), 2, &["is not NAME=RUN"]);
    refused(&enmasse(&["serve", &run, "--port", "x"]), 2, &["--port"]);
    refused(&enmasse(&["serve", &run, "--batch-size", "0"]), 2, &["--batch-size"]);
    let absent = folder.path().join("absent").display().to_string();
    failed(&enmasse(&["serve", &absent, "--port", "0"]), 1, &["absent"]);
    failed(&enmasse(&["serve"]), 2, &["RUN"]);
}
