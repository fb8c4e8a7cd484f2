//! Why an object cannot be read.

use enmasse_system::files::FileError;
use enmasse_wording::one_line;
use thiserror::Error;

/// The reason, in one line that says what to do if that is known. No secret is part of it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// An address is not one, or a server does not give what is there.
    #[error("{address}: {problem}")]
    Object {
        /// The address, without what may be secret.
        address: String,
        /// The fault, and what to do.
        problem: String,
    },
    /// The folder of the cache cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is no room for the cache.
    #[error(
        "{folder}: {free} MB are free for the cache of remote data, and it needs {needed} MB; free some space, or name another folder with `cache_dir`"
    )]
    Room {
        /// Its folder.
        folder: String,
        /// Megabytes that are free.
        free: u64,
        /// Megabytes without which there is no use in it.
        needed: u64,
    },
    /// A setting cannot be used.
    #[error("{0}")]
    Setting(String),
}

impl RemoteError {
    pub(crate) fn address(address: &str, problem: impl Into<String>) -> Self {
        // Both may quote what a user or a server wrote.
        RemoteError::Object { address: one_line(address), problem: one_line(&problem.into()) }
    }

    /// The fault, without the address.
    pub fn problem(&self) -> String {
        match self {
            RemoteError::Object { problem, .. } => problem.clone(),
            other => other.to_string(),
        }
    }
}
