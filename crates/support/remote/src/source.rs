//! What a kind of server must do: give a part of an object.

use std::fmt::{self, Debug};
use std::ops::Range;

use crate::fault::Fault;

/// Which content an object has, as far as its server says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Bytes of the object.
    pub(crate) length: u64,
    /// Its ETag, or the time of its last change.
    pub(crate) tag: String,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, version {}", self.length, self.tag)
    }
}

/// A part of an object.
#[derive(Debug)]
pub(crate) struct Part {
    pub bytes: Vec<u8>,
    pub version: Version,
}

/// An object on a server. Several threads may read at a time.
pub(crate) trait Source: Send + Sync + Debug {
    /// The server in messages.
    fn server(&self) -> &str;

    /// What belongs to the fault that no answer comes at all: what to check.
    fn advice(&self) -> &str;

    /// Asks once for a range of bytes, which is not empty. One that goes past the end is cut there. With `version` the object must
    /// have that content; anything else is a lasting fault. Returns after a limited time.
    fn read(&self, range: Range<u64>, version: Option<&Version>) -> Result<Part, Fault>;
}

/// The fault of an object with another content than the one with which a run began.
pub(crate) fn changed() -> Fault {
    Fault::Lasting(
        "it has changed since this run first read it; start the run again to train on the new one".to_owned(),
    )
}

/// Compares a part with the version that is wanted, and with the range that was asked for.
pub(crate) fn checked(part: Part, range: &Range<u64>, version: Option<&Version>) -> Result<Part, Fault> {
    if version.is_some_and(|wanted| *wanted != part.version) {
        return Err(changed());
    }
    let expected = part.version.length.min(range.end).saturating_sub(range.start);
    match part.bytes.len() as u64 == expected {
        true => Ok(part),
        false => Err(Fault::Passing(format!("it sends {} bytes instead of {expected}", part.bytes.len()))),
    }
}
