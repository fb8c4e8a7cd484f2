//! What becomes of a page that fails, and of streams whose clients leave.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::server::MAX_CONNECTIONS;
use super::{Request, Response, Server, Site};

/// More than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Pages that fail, or never end; the end of one of those is told.
struct Bad(Mutex<Sender<()>>);

impl Site for Bad {
    fn answer(&self, request: &Request) -> Response {
        let ended = self.0.lock().unwrap().clone();
        match request.path.as_str() {
            "/panic" => panic!("a bug of the page"),
            "/endless" => Response::events(Box::new(move |stream| {
                let written = std::iter::repeat_with(|| stream.write_all(b"data\n\n")).find_map(Result::err);
                ended.send(()).unwrap();
                written.map_or(Ok(()), Err)
            })),
            _ => Response::page("well".to_owned()),
        }
    }
}

#[test]
fn a_page_that_fails_and_streams_that_are_left() {
    let (told, ended) = channel();
    let server = Server::start(Some(0), Arc::new(Bad(Mutex::new(told)))).unwrap();
    let (address, token) = server.link().strip_prefix("http://").unwrap().split_once('/').unwrap();
    let open = |path: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let head = format!("GET {path}{token} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).map(|()| (String::from_utf8_lossy(&status[9..]).into_owned(), stream)).ok()
    };
    let status = |path: &str| open(path).map(|(status, _)| status);
    assert_eq!(status("/panic").as_deref(), Some("500"));
    assert_eq!(status("/").as_deref(), Some("200"));
    // As many streams as connections leave no thread for anything else.
    let mut streams: Vec<_> = (0..MAX_CONNECTIONS).map_while(|_| open("/endless")).collect();
    assert!(streams.iter().all(|(status, _)| status == "200" || status == "503"));
    streams.retain(|(status, _)| status == "200");
    let many = streams.len();
    assert!(many > MAX_CONNECTIONS - 4, "{many}");
    drop(streams);
    (0..many).for_each(|_| ended.recv_timeout(TIMEOUT).unwrap());
    let begun = Instant::now();
    while status("/").as_deref() != Some("200") {
        assert!(begun.elapsed() < TIMEOUT);
    }
}
