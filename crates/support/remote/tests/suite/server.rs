//! A server on loopback that gives parts of files, and answers as each test wants: wrongly, slowly, or not at all.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

/// How long a test waits for what must come.
const DEADLINE: Duration = Duration::from_secs(300);

/// How the server answers a request.
#[derive(Clone, Debug)]
pub enum Answer {
    /// As a server does.
    Well,
    /// The same, but the connection ends after so many bytes of the body.
    Cut(usize),
    /// A part of the right length from a later byte on.
    Later,
    /// Fewer bytes than requested, in an answer that is whole.
    Short,
    /// The part, of a file that has so many bytes.
    Of(u64),
    /// All of it, whatever part is requested.
    Whole,
    /// A status, and a body.
    Status(&'static str, &'static str),
    /// A head and a byte, and then nothing more while the client waits.
    Silent,
}

/// A server. Dropped, it refuses connections.
pub struct Server {
    pub address: String,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    files: BTreeMap<String, (Arc<Vec<u8>>, u32)>,
    answers: VecDeque<Answer>,
    requests: Vec<String>,
    /// Those that get no answer but a refusal.
    refused: BTreeSet<String>,
    /// Whether requests wait for their answers.
    holds: bool,
    waiting: usize,
    is_over: bool,
}

impl Server {
    pub fn start(files: &[(&str, &[u8])]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://127.0.0.1:{}", listener.local_addr().unwrap().port());
        let server = Server { address, shared: Arc::default() };
        files.iter().for_each(|(name, bytes)| server.put(name, bytes));
        let shared = server.shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if shared.state.lock().unwrap().is_over {
                    break;
                }
                let shared = shared.clone();
                // A client that does not wait for the end is what some tests are about.
                thread::spawn(move || answer(stream, &shared).unwrap_or_default());
            }
        });
        server
    }

    /// Makes this the content of a file, which gets another ETag.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        let files = &mut self.shared.state.lock().unwrap().files;
        let number = files.get(name).map_or(0, |(_, number)| number + 1);
        files.insert(name.to_owned(), (Arc::new(bytes.to_vec()), number));
    }

    /// Answers the next requests so, and further ones well.
    pub fn answers(&self, answers: &[Answer]) {
        self.shared.state.lock().unwrap().answers = answers.to_vec().into();
    }

    /// Refuses this request, name and range, from now on.
    pub fn refuse(&self, request: &str) {
        self.shared.state.lock().unwrap().refused.insert(request.to_owned());
    }

    /// Lets requests wait for their answers, or answers those that wait.
    pub fn hold(&self, holds: bool) {
        self.shared.state.lock().unwrap().holds = holds;
        self.shared.changed.notify_all();
    }

    /// Waits until so many requests wait for their answers, or more.
    pub fn until_waiting(&self, requests: usize) {
        self.until(|state| state.waiting >= requests);
    }

    /// Waits until so many requests have come since the last call of [`requests`](Self::requests), or more.
    pub fn until_requests(&self, requests: usize) {
        self.until(|state| state.requests.len() >= requests);
    }

    fn until(&self, has_come: impl Fn(&State) -> bool) {
        let state = self.shared.state.lock().unwrap();
        let (state, waited) =
            self.shared.changed.wait_timeout_while(state, DEADLINE, |state| !has_come(state)).unwrap();
        assert!(!waited.timed_out(), "{} requests wait; {:?} have come", state.waiting, state.requests);
    }

    /// The requests since the last call: name and range.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.state.lock().unwrap().requests)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.state.lock().unwrap().is_over = true;
        self.hold(false);
        // Wakes the thread, which closes its socket.
        let woken = TcpStream::connect(self.address.trim_start_matches("http://"));
        let _ = woken.map(|mut stream| stream.read_to_end(&mut Vec::new()));
    }
}

/// Reads a request and answers it.
fn answer(stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let name = line.split(' ').nth(1).unwrap_or_default().trim_start_matches('/').to_owned();
    let (mut range, mut wanted) = (None, None);
    loop {
        let mut header = String::new();
        stream.read_line(&mut header)?;
        let header = header.trim();
        match header.split_once(": ").map(|(name, value)| (name.to_ascii_lowercase(), value)) {
            Some((name, value)) if name == "range" => range = value.strip_prefix("bytes=").map(str::to_owned),
            Some((name, value)) if name == "if-match" => wanted = Some(value.to_owned()),
            Some(_) => {}
            None => break,
        }
    }
    let (found, answer) = {
        let mut state = shared.state.lock().unwrap();
        let request = format!("{name} {}", range.as_deref().unwrap_or("all"));
        let usual = match state.refused.contains(&request) {
            true => Answer::Status("403 Forbidden", ""),
            false => Answer::Well,
        };
        state.requests.push(request);
        state.waiting += 1;
        shared.changed.notify_all();
        state = shared.changed.wait_while(state, |state| state.holds).unwrap();
        state.waiting -= 1;
        (state.files.get(&name).cloned(), state.answers.pop_front().unwrap_or(usual))
    };
    let out = stream.get_mut();
    let mut send = |status: &str, headers: &str, length: usize, body: &[u8]| {
        write!(out, "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n")?;
        out.write_all(body)?;
        out.flush()
    };
    let Some((bytes, number)) = found else { return send("404 Not Found", "", 0, &[]) };
    let tag = format!("\"{number}\"");
    if wanted.is_some_and(|wanted| wanted != tag) {
        return send("412 Precondition Failed", "", 0, &[]);
    }
    let total = bytes.len();
    let (first, last) = range.as_deref().and_then(|range| range.split_once('-')).unwrap_or(("0", ""));
    let first = first.parse().unwrap();
    let end = last.parse().map_or(total, |last: usize| total.min(last + 1));
    let part =
        |first: usize, end: usize| format!("ETag: {tag}\r\nContent-Range: bytes {first}-{}/{total}\r\n", end - 1);
    let own = part(first, end);
    let partial = "206 Partial Content";
    let body = &bytes[first..end];
    match answer {
        Answer::Well => send(partial, &own, body.len(), body),
        Answer::Cut(length) => send(partial, &own, body.len(), &body[..length.min(body.len())]),
        Answer::Later => send(partial, &part(first + 1, end + 1), body.len(), body),
        Answer::Short => send(partial, &own, body.len() - 1, &body[1..]),
        Answer::Of(total) => {
            let own = format!("ETag: {tag}\r\nContent-Range: bytes {first}-{}/{total}\r\n", end - 1);
            send(partial, &own, body.len(), body)
        }
        Answer::Whole => send("200 OK", &format!("ETag: {tag}\r\n"), total, &bytes),
        Answer::Status(status, text) => send(status, "", text.len(), text.as_bytes()),
        Answer::Silent => {
            send(partial, &own, body.len() + 1, &body[..1])?;
            // Until the client has gone away.
            stream.read_to_end(&mut Vec::new()).map(drop)
        }
    }
}
