//! Why a server did not give what was asked for.

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
