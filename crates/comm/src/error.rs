//! Why a group could not be formed.

use std::io;

use thiserror::Error;

/// Why a rank could not join its group.
#[derive(Debug, Error)]
pub enum JoinError {
    /// The kernel gives no memory to share.
    #[error("no shared memory for the group: {source}")]
    SharedMemory {
        /// The kernel's refusal.
        source: io::Error,
    },
    /// The kernel starts no thread.
    #[error("cannot start a thread of the group: {source}; is a limit on processes reached (ulimit -u)?")]
    Thread {
        /// The kernel's refusal.
        source: io::Error,
    },
}
