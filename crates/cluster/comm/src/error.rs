//! Reasons why a group could not be formed.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno;
use thiserror::Error;

use crate::cause::{Cause, host_name};
use crate::net::refused::Refused;
use crate::token::UserSecretError;

/// Why a rank could not join its group.
#[derive(Error)]
#[non_exhaustive]
pub enum JoinError {
    /// An environment variable is missing or malformed.
    #[error("{name} {problem}")]
    Variable {
        /// The variable.
        name: &'static str,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// The rank is not below the world size.
    #[error("rank {rank} of {world_size} is impossible: ranks run from 0 to the world size minus 1")]
    Rank {
        /// The rank asked for.
        rank: usize,
        /// The world size asked for.
        world_size: usize,
    },
    /// The address cannot be used.
    #[error("{address:?} is not a rendezvous address: {why}; write tcp://HOST:PORT")]
    Address {
        /// As given.
        address: String,
        /// What is wrong.
        why: String,
    },
    /// The group would be reachable from other machines without a token.
    #[error(
        "{address} is reachable from other machines, so the ranks need a token: set ENMASSE_TOKEN to the same secret text for all of them, or ENMASSE_TOKEN_FILE to a file with it"
    )]
    TokenRequired {
        /// Where rank 0 would listen.
        address: String,
    },
    /// The token file cannot be used.
    #[error("cannot use the token file {}: {source}", path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The secret that is used without a token cannot be read or made.
    #[error(transparent)]
    UserSecret(#[from] UserSecretError),
    /// Rank 0 cannot listen.
    #[error(
        "rank 0 cannot listen on {address}: {source}; choose another MASTER_PORT, or let `enmasse launch` find one"
    )]
    Bind {
        /// The address.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// The store of torchrun's agent does not answer.
    #[error(
        "the store of torchrun's agent at {address} does not answer: {why}; are MASTER_ADDR and MASTER_PORT torchrun's?"
    )]
    AgentStore {
        /// Where the store should be.
        address: String,
        /// The last error.
        why: String,
    },
    /// Rank 0 cannot be reached.
    #[error("rank {rank} has not reached rank 0 at {address} within {seconds} s: {why}; is rank 0 running there?")]
    Unreachable {
        /// This rank.
        rank: usize,
        /// Rank 0's address.
        address: String,
        /// The deadline.
        seconds: f64,
        /// The last error.
        why: String,
    },
    /// Another rank holds another token.
    #[error(
        "rank {rank} and the rank at {address} hold different tokens: give all ranks the same ENMASSE_TOKEN; ranks without one must be of one user and see the same $XDG_RUNTIME_DIR or /tmp, which ranks in containers may not"
    )]
    TokenDiffers {
        /// This rank.
        rank: usize,
        /// The other rank's address.
        address: String,
    },
    /// Another rank refuses this one.
    #[error("rank {rank} was refused at {address}: {why}")]
    Refused {
        /// This rank.
        rank: usize,
        /// The other rank's address.
        address: String,
        /// The other rank's reason.
        why: String,
    },
    /// Some ranks did not join.
    #[error(
        "{} of {world_size} did not join at {address} within {seconds} s: were they started, with this address?{}",
        list(missing),
        .refused.iter().map(|refused| format!(" ({refused})")).collect::<String>()
    )]
    Missing {
        /// The missing ranks.
        missing: Vec<usize>,
        /// The world size.
        world_size: usize,
        /// Rank 0's address.
        address: String,
        /// The deadline.
        seconds: f64,
        /// The connections that this rank's ports have refused meanwhile: those of the missing ranks may be among them.
        refused: Vec<Refused>,
    },
    /// The requested transport does not work here, for this reason.
    #[error("ranks cannot share memory: {0}; use the transport auto or tcp")]
    NotShared(String),
    /// MPI cannot carry what travels between nodes. The reason names the rank if it is that of one.
    #[error("MPI cannot be used: {0}")]
    Mpi(String),
    /// The kernel provides no shared memory.
    #[error("no shared memory for the group: {0}")]
    SharedMemory(#[source] io::Error),
    /// The kernel refuses a thread or a descriptor.
    #[error("{}", refused(.0))]
    Thread(#[source] io::Error),
    /// This rank lacked a thread or a descriptor before it met the others.
    #[error("rank {rank} on host {host} failed: {why}")]
    Limit {
        /// This rank.
        rank: usize,
        /// This machine.
        host: String,
        /// What it lacked, and what to do.
        why: String,
    },
    /// The group cannot be split, for this reason.
    #[error("the group cannot be split: {0}")]
    Split(String),
    /// The group failed while it was formed.
    #[error("the group failed while it was formed: {0}")]
    Cause(Arc<Cause>),
    /// Rank 0's store failed.
    #[error("the store at {address} failed: {why}")]
    Store {
        /// Rank 0's address.
        address: String,
        /// The store's error.
        why: String,
    },
}

impl JoinError {
    /// The limit that this process or its machine has reached, and what to do, if that is the reason. It concerns one
    /// rank alone, which a message must name.
    pub(crate) fn limit(&self) -> Option<String> {
        match self {
            JoinError::Thread(source) => Some(refused(source)),
            JoinError::TokenFile { source, .. }
            | JoinError::UserSecret(UserSecretError { source, .. })
            | JoinError::Bind { source, .. }
            | JoinError::SharedMemory(source) => files_limit(source).map(str::to_owned),
            _ => None,
        }
    }

    /// Adds the connections that a port of this rank has refused, if ranks are missing.
    pub(crate) fn beside(mut self, strangers: Option<Refused>) -> Self {
        if let JoinError::Missing { refused, .. } = &mut self {
            refused.extend(strangers);
        }
        self
    }

    /// Names the rank that has reached a limit.
    pub(crate) fn of_rank_here(self, rank: usize) -> Self {
        match self.limit() {
            Some(why) => JoinError::Limit { rank, host: host_name(), why },
            None => self,
        }
    }
}

/// What to do if this process, or its machine, has no descriptor left.
pub(crate) fn files_limit(error: &io::Error) -> Option<&'static str> {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE) => Some("too many open files: raise the limit (ulimit -n)"),
        Some(Errno::NFILE) => Some("too many open files on this machine: raise its limit (sysctl fs.file-max)"),
        _ => None,
    }
}

/// The refusal of a thread, or of a descriptor that the thread needs.
pub(crate) fn refused(source: &io::Error) -> String {
    match (files_limit(source), Errno::from_io_error(source)) {
        (Some(why), _) => why.to_owned(),
        (None, Some(Errno::AGAIN)) => {
            format!("cannot start a thread of the group: {source}; raise the limit on processes (ulimit -u)")
        }
        (None, _) => format!("cannot start a thread of the group: {source}"),
    }
}

/// The text of [`std::fmt::Display`]: a `main` that returns the error prints this.
impl std::fmt::Debug for JoinError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// "rank 3", or "ranks 3, 4".
fn list(ranks: &[usize]) -> String {
    let names: Vec<_> = ranks.iter().map(usize::to_string).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, names.join(", "))
}
