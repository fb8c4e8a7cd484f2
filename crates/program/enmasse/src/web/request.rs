//! Requests, read within limits and a deadline.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Larger heads are refused.
const MAX_HEAD: usize = 16 << 10;

/// More headers are refused.
const MAX_HEADERS: usize = 64;

/// Larger bodies are refused.
pub const MAX_BODY: usize = 32 << 20;

/// A request: its head, and its body once [`Request::read_body`] has read it.
#[derive(Debug, Default)]
pub struct Request {
    pub method: String,
    pub path: String,
    query: String,
    headers: Vec<(String, String)>,
    /// Of the body, what came with the head at first.
    body: Vec<u8>,
}

/// Why a request has no answer of a site: the status, and a line.
pub type Refusal = (u16, &'static str);

const MALFORMED: Refusal = (400, "the request is malformed");
const LATE: Refusal = (408, "the request did not come in time");

impl Request {
    /// Reads a head. An error if the connection ends before it, or if it takes too long.
    pub fn read(stream: &mut TcpStream, deadline: Instant) -> Result<Self, Refusal> {
        let mut bytes = Vec::new();
        loop {
            if let Some(request) = Self::parse(&bytes)? {
                return Ok(request);
            }
            if bytes.len() >= MAX_HEAD {
                return Err((431, "the head of the request is too large"));
            }
            receive(stream, &mut bytes, MAX_HEAD, deadline)?;
        }
    }

    /// The request, once the head is complete.
    fn parse(bytes: &[u8]) -> Result<Option<Self>, Refusal> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut head = httparse::Request::new(&mut headers);
        let length = match head.parse(bytes) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(httparse::Error::TooManyHeaders) => return Err((431, "the request has too many headers")),
            Err(_) => return Err(MALFORMED),
        };
        let (Some(method), Some(target)) = (head.method, head.path) else { return Err(MALFORMED) };
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let text = |header: &httparse::Header| {
            let value = std::str::from_utf8(header.value).map_err(|_| MALFORMED)?;
            Ok((header.name.to_ascii_lowercase(), value.trim().to_owned()))
        };
        let headers = head.headers.iter().map(text).collect::<Result<Vec<_>, Refusal>>()?;
        // Of two the browser and this program might take different ones.
        if headers.iter().filter(|(name, _)| name == "host").count() > 1 {
            return Err(MALFORMED);
        }
        let (method, path, query) = (method.to_owned(), path.to_owned(), query.to_owned());
        Ok(Some(Request { method, path, query, headers, body: bytes[length..].to_vec() }))
    }

    /// The value of a header, whose name is in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// The value of a part of the address after `?`. Nothing that is asked for there needs escapes.
    pub fn query(&self, name: &str) -> Option<&str> {
        self.query.split('&').filter_map(|pair| pair.split_once('=')).find(|(own, _)| *own == name).map(|pair| pair.1)
    }

    /// Reads the body.
    pub fn read_body(&mut self, stream: &mut TcpStream, deadline: Instant) -> Result<(), Refusal> {
        if self.header("transfer-encoding").is_some() {
            return Err((411, "the request does not say how long it is"));
        }
        let length = match self.header("content-length").map(str::parse) {
            None => 0,
            Some(Ok(length)) => length,
            Some(Err(_)) => return Err(MALFORMED),
        };
        if length > MAX_BODY {
            return Err((413, "the file is too large: the limit is 32 MiB"));
        }
        if self.body.len() < length && self.header("expect").is_some() {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").map_err(|_| LATE)?;
        }
        while self.body.len() < length {
            receive(stream, &mut self.body, length, deadline)?;
        }
        self.body.truncate(length);
        Ok(())
    }

    /// The file in the body: of a form, or the body itself.
    pub fn upload(&self) -> &[u8] {
        let kind = self.header("content-type").unwrap_or_default();
        let Some(boundary) = kind.strip_prefix("multipart/form-data").and_then(|rest| rest.split_once("boundary="))
        else {
            return &self.body;
        };
        let boundary = format!("--{}", boundary.1.trim_matches('"'));
        let file = || {
            let start = find(&self.body, boundary.as_bytes())?;
            let part = &self.body[start + boundary.len()..];
            let content = &part[find(part, b"\r\n\r\n")? + 4..];
            Some(&content[..find(content, format!("\r\n{boundary}").as_bytes())?])
        };
        file().unwrap_or_default()
    }
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

/// Waits for more bytes, of which there may be `most` in all.
fn receive(stream: &mut TcpStream, bytes: &mut Vec<u8>, most: usize, deadline: Instant) -> Result<(), Refusal> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() || stream.set_read_timeout(Some(left.max(Duration::from_millis(1)))).is_err() {
        return Err(LATE);
    }
    let mut piece = [0; 16 << 10];
    let most = (most - bytes.len()).min(piece.len());
    loop {
        return match stream.read(&mut piece[..most]) {
            Ok(0) => Err(MALFORMED),
            Ok(read) => {
                bytes.extend_from_slice(&piece[..read]);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => Err(LATE),
        };
    }
}

/// Takes what a refused client still sends, so that it reads the answer instead of an error.
pub fn drain(stream: &mut TcpStream, deadline: Instant) -> io::Result<()> {
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut ignored = [0; 16 << 10];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        stream.set_read_timeout(Some(left))?;
        if stream.read(&mut ignored)? == 0 {
            return Ok(());
        }
    }
}
