//! Why a server did not give what was asked for.

use std::io::{self, ErrorKind};
use std::time::Duration;

use thiserror::Error;

/// Why a server did not give what was asked for: the end of a sentence that begins with the address.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{}", self.words())]
pub enum Fault {
    /// Another attempt may succeed.
    Passing(String),
    /// It will answer the same again.
    Lasting(String),
}

impl Fault {
    /// The fault, without the name of the server.
    pub fn words(&self) -> &str {
        match self {
            Fault::Passing(words) | Fault::Lasting(words) => words,
        }
    }
}

pub(crate) fn of(error: ureq::Error, timeout: Duration) -> Fault {
    match error {
        ureq::Error::HostNotFound => Fault::Passing("there is no such host, or no network".to_owned()),
        ureq::Error::Timeout(_) => Fault::Passing(silent(timeout)),
        ureq::Error::Io(error) => of_body(&error, timeout),
        ureq::Error::TooManyRedirects => Fault::Lasting("it redirects again and again".to_owned()),
        ureq::Error::RequireHttpsOnly(_) => Fault::Lasting("it redirects to an address without TLS".to_owned()),
        error => Fault::Lasting(error.to_string()),
    }
}

pub(crate) fn of_body(error: &io::Error, timeout: Duration) -> Fault {
    Fault::Passing(words(error, timeout))
}

fn words(error: &io::Error, timeout: Duration) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(ureq::Error::Timeout(_)) => return silent(timeout),
        Some(ureq::Error::Io(inner)) => return words(inner, timeout),
        _ => {}
    }
    match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => silent(timeout),
        ErrorKind::UnexpectedEof => "the connection was cut".to_owned(),
        _ => error.to_string(),
    }
}

fn silent(timeout: Duration) -> String {
    format!("nothing came for {} s", timeout.as_secs_f64())
}
