//! Answers, with the headers that keep a browser from running or sending what it should not.

use std::io::{self, ErrorKind, Write};

use axum::body::Bytes;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::IntoResponse;
use http_body_util::channel::{Channel, Sender};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use super::connections::Slot;
use super::{IMAGE_POLICY, PAGE_POLICY};

/// Lines for people.
pub const TEXT: &str = "text/plain; charset=utf-8";

/// What a stream writes to; an error means that the client has gone.
pub type Stream = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()> + Send>;

/// The content of an answer.
pub enum Body {
    Whole(Vec<u8>),
    /// Goes on until the client leaves.
    Stream(Stream),
}

/// An answer.
pub struct Response {
    status: StatusCode,
    kind: &'static str,
    policy: &'static str,
    cookie: Option<String>,
    body: Body,
}

impl Response {
    fn new(kind: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Response { status: StatusCode::OK, kind, policy: PAGE_POLICY, cookie: None, body: Body::Whole(body.into()) }
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

    pub fn png(bytes: impl Into<Vec<u8>>) -> Self {
        Response { policy: IMAGE_POLICY, ..Self::new("image/png", bytes) }
    }

    /// Server-sent events.
    pub fn events(stream: Stream) -> Self {
        Response { body: Body::Stream(stream), ..Self::new("text/event-stream; charset=utf-8", "") }
    }

    /// A line that says what is wrong.
    pub fn refused(status: StatusCode, line: &str) -> Self {
        Response { status, ..Self::new(TEXT, format!("{line}\n")) }
    }

    pub fn not_found() -> Self {
        Self::refused(StatusCode::NOT_FOUND, "there is no such page")
    }

    pub fn with_status(self, status: StatusCode) -> Self {
        Response { status, ..self }
    }

    pub fn with_cookie(self, cookie: Option<String>) -> Self {
        Response { cookie, ..self }
    }

    /// As HTTP. `slot` is held for as long as a stream is written.
    pub fn into_http(self, slot: Slot) -> axum::response::Response {
        let Response { status, kind, policy, cookie, body } = self;
        let headers = [
            (header::CONTENT_TYPE, kind),
            (header::CONTENT_SECURITY_POLICY, policy),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            // With `no-referrer` browsers would not say that a form is of this page's origin.
            (header::REFERRER_POLICY, "same-origin"),
            (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
            (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
            (header::X_FRAME_OPTIONS, "DENY"),
            (header::CACHE_CONTROL, "no-store"),
        ];
        let cookie = cookie.map(|cookie| [(header::SET_COOKIE, cookie)]);
        let body = match body {
            Body::Whole(bytes) => bytes.into(),
            Body::Stream(events) => {
                let (sender, body) = Channel::new(1);
                let mut writer = Events { sender, runtime: Handle::current() };
                spawn_blocking(move || {
                    let _slot = slot;
                    // An error means that the client has gone.
                    let _ = events(&mut writer);
                });
                axum::body::Body::new(body)
            }
        };
        (status, headers, cookie, body).into_response()
    }
}

/// Hands on what a stream writes.
struct Events {
    sender: Sender<Bytes>,
    runtime: Handle,
}

impl Write for Events {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.runtime.block_on(self.sender.send_data(Bytes::copy_from_slice(bytes)));
        sent.map(|()| bytes.len()).map_err(|_| ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
