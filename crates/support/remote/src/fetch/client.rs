//! Asks servers for archives, each with limits of time and size.

use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use ureq::Body;
use ureq::http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, RANGE};
use ureq::http::request::Builder;
use ureq::http::{HeaderMap, Request, Response, StatusCode};

use crate::fault::Fault;
use crate::http::{Redirects, authorities, number, range};

use crate::fetch::download::Download;
use crate::fetch::{Answer, FetchError};

/// The body of an answer.
pub(crate) struct Opened {
    /// The byte of the file with which it begins: the requested one, or 0 where the server sends all of it.
    pub from: u64,
    /// Bytes of the whole file.
    pub total: u64,
    body: Body,
    client: crate::http::Client,
}

pub(crate) struct Client(crate::http::Client);

impl Client {
    /// A client whose every wait ends after `timeout`. It trusts the authorities in the file `trusted`, or Mozilla's, which are
    /// part of the program. Proxies are those of the usual variables (`https_proxy`, `no_proxy`).
    pub fn new(timeout: Duration, trusted: Option<&Path>) -> Result<Self, FetchError> {
        let refuse = |path: &Path, problem| FetchError::Authorities { path: path.display().to_string(), problem };
        let trusted = trusted.map(|path| authorities(path).map_err(|problem| refuse(path, problem))).transpose()?;
        Ok(Client(crate::http::Client::new(timeout, trusted)))
    }

    /// Window of time in which a body must go on, too.
    pub fn timeout(&self) -> Duration {
        self.0.timeout()
    }

    /// Asks for a file, from a byte on. Another length than the wanted one, or more than its limit, is a lasting fault before
    /// anything is read.
    pub fn open(&self, wanted: &Download, url: &str, from: u64) -> Result<Opened, Fault> {
        let mut request = Request::get(url);
        if from > 0 {
            request = request.header(RANGE, format!("bytes={from}-"));
        }
        let response = self.send(request, wanted.token)?;
        let (status, headers) = (response.status(), response.headers());
        let (from, told) = match status {
            StatusCode::OK if is_page(headers) => {
                return Err(Fault::Lasting("it answers with a web page, as a login or a proxy does".to_owned()));
            }
            StatusCode::OK => (0, number(headers, CONTENT_LENGTH)),
            StatusCode::PARTIAL_CONTENT => match range(headers) {
                Some((begin, total)) if begin == from => (from, total),
                _ => return Err(Fault::Lasting(format!("it sends another part than that from byte {from} on"))),
            },
            // The file there is shorter than what an earlier attempt has received.
            StatusCode::RANGE_NOT_SATISFIABLE if from > 0 => return self.open(wanted, url, 0),
            _ => return Err(refused(status)),
        };
        let total = match (told, wanted.bytes) {
            (Some(total), Some(length)) if total != length => return Err(other_length(total, length)),
            (Some(total), _) | (None, Some(total)) => total,
            (None, None) => return Err(Fault::Lasting("it does not tell the length of the file".to_owned())),
        };
        if total > wanted.limit {
            return Err(Fault::Lasting(format!("it has {total} bytes there, more than {}", wanted.limit)));
        }
        Ok(Opened { from, total, body: response.into_body(), client: self.0.clone() })
    }

    /// A short answer, whatever its status. One that is longer than `limit` is a lasting fault.
    pub fn ask(&self, url: &str, token: Option<&str>, limit: u64) -> Result<Answer, Fault> {
        let response = self.send(Request::get(url), token)?;
        let status = response.status();
        if is_passing(status) {
            return Err(refused(status));
        }
        let mut body = Vec::new();
        let read = response.into_body().into_reader().take(limit + 1).read_to_end(&mut body);
        read.map_err(|error: io::Error| self.0.fault(&error))?;
        if body.len() as u64 > limit {
            return Err(Fault::Lasting(format!("its answer has more than {limit} bytes")));
        }
        Ok(Answer { status: status.to_string(), is_well: status == StatusCode::OK, body })
    }

    fn send(&self, request: Builder, token: Option<&str>) -> Result<Response<Body>, Fault> {
        let request = match token {
            Some(token) => request.header(AUTHORIZATION, format!("Bearer {token}")),
            None => request,
        };
        let request = request.body(()).map_err(|error| Fault::Lasting(error.to_string()))?;
        self.0.send(request, Redirects::Follow, None)
    }
}

/// Whether a body is meant for people.
fn is_page(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().to_ascii_lowercase().starts_with(b"text/html"))
}

fn is_passing(status: StatusCode) -> bool {
    status.is_server_error() || [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(&status)
}

fn refused(status: StatusCode) -> Fault {
    let why = format!("it answers {status}");
    if is_passing(status) { Fault::Passing(why) } else { Fault::Lasting(why) }
}

impl Opened {
    /// Reads on; 0 at the end.
    pub fn read(&mut self, bytes: &mut [u8]) -> Result<usize, Fault> {
        self.body.as_reader().read(bytes).map_err(|error| self.client.fault(&error))
    }
}

fn other_length(found: u64, expected: u64) -> Fault {
    Fault::Lasting(format!("it has another file there, of {found} bytes instead of {expected}"))
}
