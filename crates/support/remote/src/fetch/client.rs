//! Asks servers for archives, each with limits of time and size.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use ureq::Body;
use ureq::http::header::{CONTENT_LENGTH, RANGE};
use ureq::http::{Request, StatusCode};

use crate::fault::Fault;
use crate::http::{Redirects, authorities, number, range};

use crate::fetch::FetchError;

/// The body of an answer.
pub(crate) struct Opened {
    /// The byte of the file with which it begins: the requested one, or 0 where the server sends all of it.
    pub from: u64,
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

    /// Asks for a file of `length` bytes, from a byte on. Another length is a lasting fault, before anything is read.
    pub fn open(&self, url: &str, from: u64, length: u64) -> Result<Opened, Fault> {
        let mut request = Request::get(url);
        if from > 0 {
            request = request.header(RANGE, format!("bytes={from}-"));
        }
        let request = request.body(()).map_err(|error| Fault::Lasting(error.to_string()))?;
        let response = self.0.send(request, Redirects::Follow, None)?;
        let (status, headers) = (response.status(), response.headers());
        let from = match status {
            StatusCode::OK => match number(headers, CONTENT_LENGTH) {
                Some(other) if other != length => return Err(other_length(other, length)),
                _ => 0,
            },
            StatusCode::PARTIAL_CONTENT => match range(headers) {
                Some((begin, total)) if begin == from && total.is_none_or(|total| total == length) => from,
                Some((begin, Some(total))) if begin == from => return Err(other_length(total, length)),
                _ => return Err(Fault::Lasting(format!("it sends another part than that from byte {from} on"))),
            },
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
                return Err(Fault::Passing(format!("it answers {status}")));
            }
            _ if status.is_server_error() => return Err(Fault::Passing(format!("it answers {status}"))),
            _ => return Err(Fault::Lasting(format!("it answers {status}"))),
        };
        Ok(Opened { from, body: response.into_body(), client: self.0.clone() })
    }
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
