//! A server on loopback that answers as each test wants: wrongly, slowly, or not at all.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::certificates::{KEY, SERVER};

/// How the server answers a request for a file.
#[derive(Clone, Debug)]
pub enum Answer {
    /// As a server does: all of it, or the part from the requested byte on.
    Well,
    /// The same, but the connection ends after so many bytes of the body.
    Cut(usize),
    /// All of it, whatever part is requested.
    All,
    /// Other bytes of the same length.
    Other,
    /// All of it and more, without a length, until the client goes away.
    Endless,
    /// All of it, with another length in the head.
    Length(u64),
    /// The part from another byte on.
    Part(u64),
    /// A status without a body.
    Status(&'static str),
    /// A page for people.
    Page,
    /// Another address.
    Redirect(String),
    /// A head, and then nothing more while the client waits.
    Silent,
    /// A line of the head that does not end.
    LongHead,
}

pub struct Server {
    pub address: String,
    /// The requests: method and path, the range if there is one, and whether a token came along.
    pub requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Answers requests for `files` with the given answers, one after another, and well after these.
    pub fn start(files: &[(&str, &[u8])], answers: &[Answer]) -> Self {
        Self::serve(files, answers, None)
    }

    /// The same with TLS.
    pub fn start_tls(files: &[(&str, &[u8])], answers: &[Answer]) -> Self {
        let certificate = CertificateDer::from_pem_slice(SERVER.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(KEY.as_bytes()).unwrap();
        let config = ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key);
        Self::serve(files, answers, Some(Arc::new(config.unwrap())))
    }

    fn serve(files: &[(&str, &[u8])], answers: &[Answer], tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let address = format!("{scheme}://127.0.0.1:{}/files", listener.local_addr().unwrap().port());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let files: Vec<(String, Vec<u8>)> =
            files.iter().map(|(name, bytes)| (format!("/files/{name}"), bytes.to_vec())).collect();
        let mut answers = VecDeque::from(answers.to_vec());
        let told = requests.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that does not wait for the end is what some tests are about.
                let _ = match &tls {
                    None => answer(stream, &files, &mut answers, &told),
                    Some(config) => {
                        let connection = ServerConnection::new(config.clone()).unwrap();
                        answer(StreamOwned::new(connection, stream), &files, &mut answers, &told)
                    }
                };
            }
        });
        Server { address, requests }
    }

    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

/// Reads a request and answers it.
fn answer(
    stream: impl Read + Write,
    files: &[(String, Vec<u8>)],
    answers: &mut VecDeque<Answer>,
    told: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    let mut from = None;
    let mut token = false;
    stream.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    loop {
        let mut header = String::new();
        stream.read_line(&mut header)?;
        let header = header.trim().to_ascii_lowercase();
        match header.strip_prefix("range: bytes=") {
            Some(range) => from = range.trim_end_matches('-').parse::<usize>().ok(),
            None if header.starts_with("authorization: ") => token = true,
            None if header.is_empty() => break,
            None => {}
        }
    }
    let range = from.map_or(String::new(), |from| format!(" from {from}"));
    let token = if token { " with a token" } else { "" };
    told.lock().unwrap().push(format!("{path}{range}{token}"));
    let out = stream.get_mut();
    let Some((_, bytes)) = files.iter().find(|(name, _)| *name == path) else {
        write!(out, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
        return out.flush();
    };
    let total = bytes.len();
    let head = |begin: usize, total: usize| match begin {
        0 => format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {total}\r\n\r\n"),
        _ => format!(
            "HTTP/1.1 206 Partial Content\r\nConnection: close\r\nContent-Length: {}\r\nContent-Range: bytes {begin}-{}/{total}\r\n\r\n",
            total - begin,
            total - 1
        ),
    };
    let begin = from.unwrap_or(0);
    let mut send = |head: String, body: &[u8]| {
        out.write_all(head.as_bytes())?;
        out.write_all(body)?;
        out.flush()
    };
    match answers.pop_front().unwrap_or(Answer::Well) {
        Answer::Well => send(head(begin, total), &bytes[begin..]),
        Answer::Cut(length) => send(head(begin, total), &bytes[begin..begin + length]),
        Answer::All => send(head(0, total), bytes),
        Answer::Other => send(head(0, total), &vec![7; total]),
        Answer::Endless => {
            send("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_owned(), bytes)?;
            loop {
                send(String::new(), &[0; 1000])?;
            }
        }
        Answer::Length(length) => {
            send(format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"), bytes)
        }
        Answer::Part(begin) => {
            let head = format!(
                "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {begin}-9/{total}\r\nContent-Length: 1\r\n\r\n"
            );
            send(head, &[0])
        }
        Answer::Status(status) => {
            send(format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"), &[])
        }
        Answer::Page => send(
            "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: 6\r\n\r\n".to_owned(),
            b"<html>",
        ),
        Answer::Redirect(address) => {
            let head =
                format!("HTTP/1.1 302 Found\r\nLocation: {address}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
            send(head, &[])
        }
        Answer::Silent => {
            send(head(begin, total), &bytes[begin..begin + 1])?;
            // Until the client has gone away.
            stream.read_to_end(&mut Vec::new()).map(drop)
        }
        Answer::LongHead => {
            send("HTTP/1.1 200 OK\r\nX: ".to_owned(), &[])?;
            loop {
                send(String::new(), &[b'x'; 1000])?;
            }
        }
    }
}
