//! Requests over HTTP and HTTPS, each with limits of time and size.

use std::io::{self, ErrorKind, Read};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use enmasse_files::read_regular;
use ureq::http::header::{CONTENT_LENGTH, CONTENT_RANGE, HeaderMap, RANGE};
use ureq::http::{StatusCode, Uri};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use crate::FetchError;

/// Limit of a file of certificates, in bytes. A system's usual one has a quarter of a megabyte.
const MAX_CERTIFICATES: u64 = 16 << 20;

/// Why a server did not give what was asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Another attempt may succeed.
    Passing(String),
    /// It will answer the same again.
    Lasting(String),
}

/// The body of an answer.
pub(crate) struct Opened {
    /// The byte of the file with which it begins: the requested one, or 0 where the server sends all of it.
    pub from: u64,
    body: Body,
    patience: Duration,
}

pub(crate) struct Client {
    agent: Agent,
    patience: Duration,
}

impl Client {
    /// A client whose every wait ends after `patience`. It trusts the authorities in the file `trusted`, or Mozilla's, which are
    /// part of the program. Proxies are those of the usual variables (`https_proxy`, `no_proxy`).
    pub fn new(patience: Duration, trusted: Option<&Path>) -> Result<Self, FetchError> {
        let limit = Some(patience);
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .user_agent(concat!("enmasse/", env!("CARGO_PKG_VERSION")))
            // The length and the bytes of the file itself.
            .accept_encoding("identity")
            .timeout_resolve(limit)
            .timeout_connect(limit)
            .timeout_send_request(limit)
            .timeout_recv_response(limit)
            .timeout_per_read(limit)
            .timeout_per_write(limit)
            .tls_config(TlsConfig::builder().root_certs(trusted.map_or(Ok(RootCerts::WebPki), authorities)?).build());
        Ok(Client { agent: config.build().into(), patience })
    }

    /// Window of time in which a body must go on, too.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// Asks for a file of `length` bytes, from a byte on. Another length is a lasting fault, before anything is read.
    pub fn open(&self, url: &str, from: u64, length: u64) -> Result<Opened, Fault> {
        let secure = url.starts_with("https://");
        // Redirects stay with TLS where the address had it.
        let config = self.agent.get(url).config().https_only(secure);
        let mut request = if is_local(url) { config.proxy(None).build() } else { config.build() };
        if from > 0 {
            request = request.header(RANGE, format!("bytes={from}-"));
        }
        let response = request.call().map_err(|error| self.fault(error))?;
        let (status, headers) = (response.status(), response.headers());
        let from = match status {
            StatusCode::OK => match number(headers, CONTENT_LENGTH.as_str()) {
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
        Ok(Opened { from, body: response.into_body(), patience: self.patience })
    }

    fn fault(&self, error: ureq::Error) -> Fault {
        match error {
            ureq::Error::HostNotFound => Fault::Passing("there is no such host, or no network".to_owned()),
            ureq::Error::Timeout(_) => Fault::Passing(silent(self.patience)),
            ureq::Error::Io(error) => Fault::Passing(words(&error, self.patience)),
            ureq::Error::TooManyRedirects => Fault::Lasting("it redirects again and again".to_owned()),
            ureq::Error::RequireHttpsOnly(_) => Fault::Lasting("it redirects to an address without TLS".to_owned()),
            error => Fault::Lasting(error.to_string()),
        }
    }
}

impl Opened {
    /// Reads on; 0 at the end.
    pub fn read(&mut self, bytes: &mut [u8]) -> Result<usize, Fault> {
        self.body.as_reader().read(bytes).map_err(|error| Fault::Passing(words(&error, self.patience)))
    }
}

fn words(error: &io::Error, patience: Duration) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(ureq::Error::Timeout(_)) => return silent(patience),
        Some(ureq::Error::Io(inner)) => return words(inner, patience),
        _ => {}
    }
    match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => silent(patience),
        ErrorKind::UnexpectedEof => "the connection was cut".to_owned(),
        _ => error.to_string(),
    }
}

fn silent(patience: Duration) -> String {
    format!("nothing came for {} s", patience.as_secs_f64())
}

fn other_length(found: u64, expected: u64) -> Fault {
    Fault::Lasting(format!("it has another file there, of {found} bytes instead of {expected}"))
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

/// The first byte of a part and the length of the whole, if that is told: `bytes 7-9/10` or `bytes 7-9/*`.
fn range(headers: &HeaderMap) -> Option<(u64, Option<u64>)> {
    let (part, total) = headers.get(CONTENT_RANGE)?.to_str().ok()?.trim().strip_prefix("bytes ")?.split_once('/')?;
    let begin = part.split_once('-')?.0.parse().ok()?;
    Some((begin, if total == "*" { None } else { Some(total.parse().ok()?) }))
}

/// The certificates in a PEM file.
fn authorities(path: &Path) -> Result<RootCerts, FetchError> {
    let refuse = |problem: String| FetchError::Authorities { path: path.display().to_string(), problem };
    let text = read_regular(path, MAX_CERTIFICATES).map_err(|error| refuse(error.to_string()))?;
    let found: Vec<Certificate> = parse_pem(&text)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if found.is_empty() {
        Err(refuse("it has no certificates".to_owned()))
    } else {
        Ok(RootCerts::new_with_certs(&found))
    }
}

/// Whether an address leads to this machine itself, where no proxy leads.
fn is_local(url: &str) -> bool {
    let Ok(address) = url.parse::<Uri>() else { return false };
    let host = address.host().unwrap_or_default();
    let numbers = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || numbers.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_files() {
        let check = |text: &str, expected: Option<(u64, Option<u64>)>| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_RANGE, text.parse().unwrap());
            assert_eq!(range(&headers), expected, "{text}");
        };
        check("bytes 7-9/10", Some((7, Some(10))));
        check("bytes 7-9/*", Some((7, None)));
        check("bytes */10", None);
        check("bytes 7-9", None);
        check("bytes 99999999999999999999-1/2", None);
        check("items 7-9/10", None);
        check("", None);
    }

    #[test]
    fn this_machine() {
        let check = |url: &str, expected: bool| assert_eq!(is_local(url), expected, "{url}");
        check("http://127.0.0.1:8000/a", true);
        check("http://[::1]/a", true);
        check("http://localhost:8000", true);
        check("https://localhost.example/a", false);
        check("https://www.cs.toronto.edu/~kriz/", false);
        check("nonsense", false);
    }
}
