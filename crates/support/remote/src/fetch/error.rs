//! Why a data set or a file could not be fetched.

use enmasse_system::files::FileError;
use thiserror::Error;

/// The reason, in one line that says what to do if that is known.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FetchError {
    /// No server gave an archive or a file.
    #[error("{archive} could not be fetched: {}", refusals.join("; "))]
    Servers {
        /// The archive.
        archive: String,
        /// The reason of each server, which it begins with.
        refusals: Vec<String>,
    },
    /// The file system has too little space.
    #[error("{folder}: it needs {needed} MB, and {free} MB are free; free some space, or name another folder")]
    Space {
        /// The folder.
        folder: String,
        /// Megabytes to be written.
        needed: u64,
        /// Megabytes that are free.
        free: u64,
    },
    /// Another process is fetching the same set to the same place.
    #[error("{0}: another process is fetching this data set into it")]
    Busy(String),
    /// Another process is fetching the same file, and gets no further.
    #[error("{0}: another process is fetching it, and has received nothing for a long time; end it, and start again")]
    Stuck(String),
    /// An archive has the right checksum, and something in it that is not written.
    #[error("{archive}: {problem}")]
    Archive {
        /// The archive.
        archive: String,
        /// What is in it.
        problem: String,
    },
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file of certificates cannot be used.
    #[error("the certificates in {path} cannot be used: {problem}")]
    Authorities {
        /// The file.
        path: String,
        /// The reason.
        problem: String,
    },
}
