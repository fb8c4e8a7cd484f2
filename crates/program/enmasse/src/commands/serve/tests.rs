//! Requests of a server whose models are functions, so that a test decides when they answer, and how they fail.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use enmasse_train::{Guess, Prediction};
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, oneshot};

use super::metrics::Metrics;
use super::queue::{Answer, Job, Model, start};
use super::routes::{Limits, Served, Server};
use crate::web::connections;

/// More than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A model whose class is the text of the image. It tells of each batch, and then waits for a word; a batch with the image `panic` is a
/// bug, one with `error` fails.
struct Gate {
    begun: Mutex<Sender<Vec<String>>>,
    go: Mutex<Receiver<()>>,
}

impl Model for Gate {
    fn batches(&self) -> &[usize] {
        &[1, 2, 4]
    }

    fn predict(&mut self, images: &[(String, Vec<u8>)]) -> Result<Vec<Prediction>, String> {
        let texts: Vec<String> =
            images.iter().map(|(_, pixels)| String::from_utf8_lossy(pixels).into_owned()).collect();
        self.begun.lock().unwrap().send(texts.clone()).unwrap();
        self.go.lock().unwrap().recv_timeout(TIMEOUT).unwrap();
        assert!(!texts.contains(&"panic".to_owned()), "a bug of the model");
        if texts.contains(&"error".to_owned()) {
            return Err("the device is\nlost".to_owned());
        }
        let prediction = |((name, _), class): (&(String, Vec<u8>), String)| Prediction {
            image: name.clone(),
            top: vec![Guess { index: 0, class, probability: 1.0 }],
            ..Prediction::default()
        };
        Ok(images.iter().zip(texts).map(prediction).collect())
    }
}

/// The other ends of a [`Gate`].
struct Control {
    begun: Receiver<Vec<String>>,
    go: Sender<()>,
}

fn gate() -> (Box<dyn Model>, Control) {
    let ((begun, told), (go, waits)) = (channel(), channel());
    (Box::new(Gate { begun: Mutex::new(begun), go: Mutex::new(waits) }), Control { begun: told, go })
}

impl Control {
    /// The batch that is computed next.
    #[track_caller]
    fn begun(&self) -> Vec<String> {
        self.begun.recv_timeout(TIMEOUT).unwrap()
    }

    /// Lets so many batches be computed.
    fn go(&self, batches: usize) {
        (0..batches).for_each(|_| self.go.send(()).unwrap());
    }
}

struct Running {
    port: u16,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(models: Vec<(&str, Box<dyn Model>)>, limits: Limits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let prepare = |bytes: &[u8], name: &str| match bytes {
            b"bug" => panic!("a bug of the decoder"),
            b"broken" => Err(format!("{name}: is no\nimage")),
            _ => Ok(bytes.to_vec()),
        };
        let served = |name: &&str| Served {
            name: (*name).to_owned(),
            prepare: Arc::new(prepare),
            about: json!({ "name": name }),
        };
        let (names, models): (Vec<&str>, Vec<_>) = models.into_iter().unzip();
        let served = names.iter().map(served).collect();
        let metrics = Arc::new(Metrics::new(names.into_iter()));
        let server = Server::new(served, start(models, metrics.clone()).unwrap(), metrics, limits);
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(2).build().unwrap();
            let end = async {
                let _ = stopped.await;
                server.drain().await;
            };
            runtime.block_on(connections::serve(listener, server.router(), (64, b""), end)).unwrap();
        });
        Running { port, stop: Some(stop), thread: Some(thread) }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    /// Sends a request, and returns what waits for its answer.
    fn send(&self, head: &str, body: &[u8]) -> Pending {
        let mut stream = self.connect();
        let port = self.port;
        let length = body.len();
        let rest = format!("Host: localhost:{port}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
        let (line, headers) = head.split_once('\n').unwrap_or((head, ""));
        let headers = if headers.is_empty() { String::new() } else { format!("{headers}\r\n") };
        stream.write_all(format!("{line} HTTP/1.1\r\n{headers}{rest}").as_bytes()).unwrap();
        // A request may be refused while it is sent.
        let _ = stream.write_all(body);
        Pending(stream)
    }

    fn ask(&self, head: &str, body: &[u8]) -> (u16, String) {
        self.send(head, body).answer()
    }

    /// Asks it to stop.
    fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    /// Waits for its end.
    fn join(&mut self) {
        self.thread.take().unwrap().join().unwrap();
    }
}

struct Pending(TcpStream);

impl Pending {
    /// The status, and all of the answer.
    fn answer(mut self) -> (u16, String) {
        let mut answer = String::new();
        self.0.read_to_string(&mut answer).unwrap();
        (answer[9..12].parse().unwrap(), answer)
    }
}

const LIMITS: Limits = Limits { queue: 8, body: 1000, time: TIMEOUT };

const PREDICT: &str = "POST /predict";

fn body(answer: &str) -> Value {
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[test]
fn a_batch_is_what_waits_when_the_device_is_free() {
    let ((one, first), (two, second)) = (gate(), gate());
    let metrics = Arc::new(Metrics::new(["one", "two"].into_iter()));
    let jobs = start(vec![one, two], metrics.clone()).unwrap();
    let places = Arc::new(Semaphore::new(16));
    let send = |model: usize, text: &str| -> oneshot::Receiver<Answer> {
        let (answer, answered) = oneshot::channel();
        let place = places.clone().try_acquire_owned().unwrap();
        jobs.send(Job { model, image: (text.to_owned(), text.into()), answer, place }).unwrap();
        answered
    };
    let class = |answer: oneshot::Receiver<Answer>| answer.blocking_recv().unwrap().unwrap().top[0].class.clone();
    let a = send(0, "a");
    assert_eq!(first.begun(), ["a"]);
    let later: Vec<_> = ["b", "c", "d", "e", "f", "g", "h"].map(|text| send(0, text)).into();
    let other = send(1, "z");
    // Nobody waits for this one.
    drop(send(0, "gone"));
    first.go(2);
    assert_eq!(first.begun(), ["b", "c", "d", "e"]);
    assert_eq!(first.begun(), ["f", "g"]);
    let last = send(0, "i");
    first.go(2);
    // The newest image goes with an older one of its model, before the other model's.
    assert_eq!(first.begun(), ["h", "i"]);
    assert_eq!(second.begun(), ["z"]);
    second.go(1);
    assert_eq!(class(a), "a");
    assert_eq!(later.into_iter().map(class).collect::<Vec<_>>(), ["b", "c", "d", "e", "f", "g", "h"]);
    assert_eq!([class(other), class(last)], ["z", "i"]);
    drop(jobs);
    let text = metrics.text(0, true);
    assert!(text.contains("enmasse_serve_batch_images_bucket{model=\"one\",le=\"1\"} 1\n"), "{text}");
    assert!(text.contains("enmasse_serve_batch_images_sum{model=\"one\"} 9\n"), "{text}");
}

#[test]
fn requests_that_have_no_prediction() {
    let (model, control) = gate();
    let running = Running::start(vec![("one", model)], LIMITS);
    let check = |head: &str, body: &[u8], status: u16, line: &str| {
        let (found, answer) = running.ask(head, body);
        let (_, text) = answer.split_once("\r\n\r\n").unwrap();
        assert_eq!((found, text), (status, &format!("{}\n", json!({ "error": line }))[..]), "{head}: {answer}");
    };
    check("POST /other", b"a", 404, "there is no such address");
    check("POST /models/two/predict", b"a", 404, "there is no such model: GET /models lists them");
    check("POST /models/%ff/predict", b"a", 404, "there is no such model: GET /models lists them");
    check("GET /predict", b"", 405, "this address takes no such request");
    check("DELETE /models", b"", 405, "this address takes no such request");
    let none = "no image was sent: the body is an image, or a form of images";
    check(PREDICT, b"", 400, none);
    check("POST /predict\nContent-Type: multipart/form-data; boundary=b", b"--c--", 400, none);
    check(PREDICT, &[0; 1001], 413, "the file is too large: the limit is 1000 bytes");
    check("POST /predict\nOrigin: http://evil.example", b"a", 403, "the request comes from a page of another site");
    check("POST /predict\nOrigin: null", b"a", 403, "the request comes from a page of another site");
    check(PREDICT, b"broken", 422, "image 0: is no image");
    check(PREDICT, b"bug", 500, "the image could not be computed");
    control.go(2);
    check(PREDICT, b"panic", 500, "the model has failed");
    check(PREDICT, b"error", 500, "the device is lost");
    let form: String = (0..9).map(|_| "--b\r\n\r\na\r\n").collect();
    check(
        "POST /predict\nContent-Type: multipart/form-data; boundary=b",
        format!("{form}--b--").as_bytes(),
        413,
        "the request has 9 images, and the queue has 8 places",
    );
    // It goes on afterwards.
    control.go(1);
    let own = format!("POST /predict\nOrigin: http://localhost:{}", running.port);
    let (status, answer) = running.ask(&own, b"rose");
    assert_eq!((status, &body(&answer)["top"][0]["class"]), (200, &json!("rose")), "{answer}");
    let (_, text) = running.ask("GET /metrics", b"");
    for (status, count) in [(200, 1), (400, 2), (403, 2), (413, 2), (422, 1), (500, 3)] {
        let line = format!("enmasse_serve_requests_total{{model=\"one\",status=\"{status}\"}} {count}\n");
        assert!(text.contains(&line), "{line} {text}");
    }
    assert!(
        text.contains("enmasse_serve_queue 0\n") && text.contains("enmasse_serve_seconds_count{model=\"one\"} 1\n")
    );
}

#[test]
fn a_full_queue_refuses_and_says_when_to_come_again() {
    let (model, control) = gate();
    let running = Running::start(vec![("one", model)], Limits { queue: 1, ..LIMITS });
    let taken = running.send(PREDICT, b"a");
    assert_eq!(control.begun(), ["a"]);
    let (status, answer) = running.ask(PREDICT, b"b");
    assert!(status == 429 && answer.contains("\r\nretry-after: 1\r\n"), "{answer}");
    assert_eq!(body(&answer), json!({ "error": "the queue is full" }));
    assert_eq!(running.ask("GET /health", b"").0, 200);
    assert!(running.ask("GET /metrics", b"").1.contains("enmasse_serve_queue 1\n"));
    control.go(2);
    assert_eq!(taken.answer().0, 200);
    assert_eq!(running.ask(PREDICT, b"c").0, 200);
}

#[test]
fn a_request_whose_time_is_over() {
    let (model, control) = gate();
    let running = Running::start(vec![("one", model)], Limits { time: Duration::from_millis(20), ..LIMITS });
    let (status, answer) = running.ask(PREDICT, b"a");
    assert_eq!((status, body(&answer)), (504, json!({ "error": "the image was not computed in time" })));
    // A body that does not come.
    let mut slow = running.connect();
    slow.write_all(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nConnection: close\r\n\r\nab").unwrap();
    let (status, answer) = Pending(slow).answer();
    assert_eq!((status, body(&answer)), (408, json!({ "error": "the request did not come in time" })));
    control.go(1);
}

#[test]
fn a_stop_answers_what_was_taken() {
    let (model, control) = gate();
    let mut running = Running::start(vec![("one", model)], LIMITS);
    let mut taken = vec![running.send(PREDICT, b"a")];
    assert_eq!(control.begun(), ["a"]);
    taken.extend(["b", "c", "d"].map(|text| running.send(PREDICT, text.as_bytes())));
    let queued = || running.ask("GET /metrics", b"").1.contains("enmasse_serve_queue 4\n");
    let begun = std::time::Instant::now();
    while !queued() {
        assert!(begun.elapsed() < TIMEOUT);
    }
    let idle = running.connect();
    running.stop();
    let begun = std::time::Instant::now();
    while running.ask("GET /health", b"").0 == 200 {
        assert!(begun.elapsed() < TIMEOUT);
    }
    assert_eq!(body(&running.ask("GET /health", b"").1), json!({ "status": "draining" }));
    let (status, answer) = running.ask(PREDICT, b"e");
    assert_eq!((status, body(&answer)), (503, json!({ "error": "the server is stopping" })));
    control.go(4);
    assert!(taken.into_iter().all(|pending| pending.answer().0 == 200));
    running.join();
    assert!(TcpStream::connect(("127.0.0.1", running.port)).is_err());
    drop(idle);
}

#[test]
fn models_are_asked_by_name_and_images_by_form() {
    let ((one, first), (two, second)) = (gate(), gate());
    let hostile = "a\"b\\c/../d e\n<é>";
    let running = Running::start(vec![("one", one), (hostile, two)], LIMITS);
    let (status, answer) = running.ask("GET /models", b"");
    assert_eq!((status, body(&answer)), (200, json!([{ "name": "one" }, { "name": hostile }])));
    first.go(3);
    second.go(1);
    let class =
        |path: &str, text: &[u8]| body(&running.ask(&format!("POST {path}"), text).1)["top"][0]["class"].clone();
    assert_eq!([class("/predict", b"a"), class("/models/one/predict", b"b")], ["a", "b"]);
    assert_eq!(first.begun(), ["a"]);
    assert_eq!(class("/models/a%22b%5Cc%2F..%2Fd%20e%0A%3C%C3%A9%3E/predict", b"c"), "c");
    assert_eq!(second.begun(), ["c"]);
    let text = running.ask("GET /metrics", b"").1;
    assert!(text.contains("{model=\"a\\\"b\\\\c/../d e\\n<é>\",status=\"200\"} 1\n"), "{text}");

    let part = |name: &str, content: &str| {
        format!("--b\r\nContent-Disposition: form-data; filename=\"{name}\"\r\n\r\n{content}\r\n")
    };
    let form = format!("{}{}--b\r\n\r\nthree\r\n--b--", part("1.png", "one"), part("2.png", "two"));
    first.go(3);
    let kind = "POST /predict\nContent-Type: multipart/form-data; boundary=b";
    let (status, answer) = running.ask(kind, form.as_bytes());
    let found: Vec<_> = body(&answer)
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["image"].clone(), row["top"][0]["class"].clone()))
        .collect();
    let expected =
        [("1.png", "one"), ("2.png", "two"), ("image 2", "three")].map(|(name, class)| (json!(name), json!(class)));
    assert_eq!((status, found), (200, expected.to_vec()));
    // One that is no image refuses the request.
    let form = format!("{}{}--b--", part("1.png", "one"), part("no.png", "broken"));
    let (status, answer) = running.ask(kind, form.as_bytes());
    assert_eq!((status, body(&answer)), (422, json!({ "error": "no.png: is no image" })));
}
