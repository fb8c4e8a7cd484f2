//! Answers, with the headers that keep a browser from running or sending what it should not.

use std::io::{self, Write};

use super::{IMAGE_POLICY, PAGE_POLICY};

/// What a stream writes to; an error means that the client has gone.
pub type Stream = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()>>;

/// The content of an answer.
pub enum Body {
    Whole(Vec<u8>),
    /// Goes on until the client leaves.
    Stream(Stream),
}

/// An answer.
pub struct Response {
    status: u16,
    kind: &'static str,
    policy: &'static str,
    cookie: Option<String>,
    body: Body,
}

impl Response {
    fn new(kind: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Response { status: 200, kind, policy: PAGE_POLICY, cookie: None, body: Body::Whole(body.into()) }
    }

    pub fn page(html: String) -> Self {
        Self::new("text/html; charset=utf-8", html)
    }

    pub fn style(text: &str) -> Self {
        Self::new("text/css; charset=utf-8", text)
    }

    pub fn script(text: &str) -> Self {
        Self::new("text/javascript; charset=utf-8", text)
    }

    /// Prometheus' text.
    pub fn metrics(text: String) -> Self {
        Self::new("text/plain; version=0.0.4; charset=utf-8", text)
    }

    pub fn svg(bytes: impl Into<Vec<u8>>) -> Self {
        Response { policy: IMAGE_POLICY, ..Self::new("image/svg+xml", bytes) }
    }

    /// Server-sent events.
    pub fn events(stream: Stream) -> Self {
        Response { body: Body::Stream(stream), ..Self::new("text/event-stream; charset=utf-8", "") }
    }

    /// A line that says what is wrong.
    pub fn refused(status: u16, line: &str) -> Self {
        Response { status, ..Self::new("text/plain; charset=utf-8", format!("{line}\n")) }
    }

    pub fn not_found() -> Self {
        Self::refused(404, "there is no such page")
    }

    pub fn with_status(self, status: u16) -> Self {
        Response { status, ..self }
    }

    pub fn with_cookie(self, cookie: Option<String>) -> Self {
        Response { cookie, ..self }
    }

    /// Whether the client may still be sending.
    pub fn is_refusal(&self) -> bool {
        self.status >= 400
    }

    pub fn write(self, stream: &mut dyn Write, with_body: bool) -> io::Result<()> {
        let Response { status, kind, policy, cookie, body } = self;
        let mut head = format!("HTTP/1.1 {status} {}\r\nContent-Type: {kind}\r\n", reason(status));
        head += &format!("Content-Security-Policy: {policy}\r\nX-Content-Type-Options: nosniff\r\n");
        // With `no-referrer` browsers would not say that a form is of this page's origin.
        head += "Referrer-Policy: same-origin\r\nCross-Origin-Resource-Policy: same-origin\r\n";
        head += "Cross-Origin-Opener-Policy: same-origin\r\nX-Frame-Options: DENY\r\n";
        head += "Cache-Control: no-store\r\nConnection: close\r\n";
        if let Some(cookie) = cookie {
            head += &format!("Set-Cookie: {cookie}\r\n");
        }
        if let Body::Whole(bytes) = &body {
            head += &format!("Content-Length: {}\r\n", bytes.len());
        }
        head += "\r\n";
        stream.write_all(head.as_bytes())?;
        match body {
            _ if !with_body => Ok(()),
            Body::Whole(bytes) => stream.write_all(&bytes),
            Body::Stream(events) => events(stream),
        }
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        411 => "Length Required",
        413 => "Content Too Large",
        422 => "Unprocessable Content",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Bad Request",
    }
}
