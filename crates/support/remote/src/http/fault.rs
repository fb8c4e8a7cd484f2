//! Words for what `ureq` reports.

use std::io::{self, ErrorKind};
use std::time::Duration;

use crate::fault::Fault;

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
