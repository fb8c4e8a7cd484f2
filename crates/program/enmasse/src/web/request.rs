//! Requests as a [`Site`](super::Site) sees them.

use axum::body::Bytes;
use axum::http::Method;
use axum::http::header::{CONTENT_TYPE, HOST};
use axum::http::request::Parts;

use super::files;

/// A request: its head, and its body once that has been read.
#[derive(Debug)]
pub struct Request {
    pub method: Method,
    pub path: String,
    head: Parts,
    pub(super) body: Bytes,
}

impl Request {
    /// The request with this head. None if it names several hosts, of which the browser and this program might take different ones.
    pub fn new(head: Parts) -> Option<Self> {
        let is_clear = head.headers.get_all(HOST).iter().count() < 2;
        let method = head.method.clone();
        let path = head.uri.path().to_owned();
        is_clear.then(|| Request { method, path, head, body: Bytes::new() })
    }

    /// The value of a header, whose name is in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name)?.to_str().ok()
    }

    /// The value of a part of the address after `?`. Nothing that is asked for there needs escapes.
    pub fn query(&self, name: &str) -> Option<&str> {
        let pairs = self.head.uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
        pairs.into_iter().find(|(own, _)| *own == name).map(|pair| pair.1)
    }

    /// The first file in the body: of a form, or the body itself.
    pub fn upload(&self) -> &[u8] {
        let kind = self.header(CONTENT_TYPE.as_str()).unwrap_or_default();
        files(kind, &self.body).first().map_or(&[], |file| file.content)
    }
}
