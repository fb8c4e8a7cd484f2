//! Why a group could not be formed.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

use crate::cause::Cause;

/// Why a rank could not join its group.
#[derive(Debug, Error)]
pub enum JoinError {
    /// A variable of the environment is missing or makes no sense.
    #[error("{name} {problem}")]
    Variable {
        /// The variable.
        name: &'static str,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// No such rank can be.
    #[error("rank {rank} of {world_size} cannot be: ranks count from 0 to the world size less 1")]
    Rank {
        /// The rank asked for.
        rank: usize,
        /// The world size asked for.
        world_size: usize,
    },
    /// The address cannot be used.
    #[error("{address:?} is no address of a rendezvous: {why}; write tcp://HOST:PORT")]
    Address {
        /// As given.
        address: String,
        /// What is wrong.
        why: String,
    },
    /// Strangers could reach the group.
    #[error(
        "{address} is reachable from other machines, so the ranks need a token: set ENMASSE_TOKEN to the same secret text for all of them"
    )]
    TokenRequired {
        /// Where rank 0 would listen.
        address: String,
    },
    /// The file of the token cannot be used.
    #[error("cannot use the token file {}: {source}", path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Rank 0 cannot listen.
    #[error(
        "rank 0 cannot listen on {address}: {source}; choose another MASTER_PORT, or let `enmasse launch` find one"
    )]
    Bind {
        /// Where.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// torchrun's agent cannot be asked.
    #[error(
        "the store of torchrun's agent at {address} does not answer: {why}; are MASTER_ADDR and MASTER_PORT torchrun's?"
    )]
    AgentStore {
        /// Where it should be.
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
        "rank {rank} and the rank at {address} hold different tokens: give all ranks the same ENMASSE_TOKEN, or none"
    )]
    TokenDiffers {
        /// This rank.
        rank: usize,
        /// The other's address.
        address: String,
    },
    /// Another rank does not take this one in.
    #[error("rank {rank} was refused at {address}: {why}")]
    Refused {
        /// This rank.
        rank: usize,
        /// The other's address.
        address: String,
        /// The other's reason.
        why: String,
    },
    /// Some ranks did not come.
    #[error(
        "{} of {world_size} did not join at {address} within {seconds} s: were they started, with this address?",
        list(missing)
    )]
    Missing {
        /// Who did not come.
        missing: Vec<usize>,
        /// How many there should be.
        world_size: usize,
        /// Rank 0's address.
        address: String,
        /// The deadline.
        seconds: f64,
    },
    /// The transport asked for does not work here.
    #[error("ranks cannot share memory: {why}; use the transport auto or tcp")]
    NotShared {
        /// Why.
        why: String,
    },
    /// The kernel gives no memory to share.
    #[error("no shared memory for the group: {source}")]
    SharedMemory {
        /// The kernel's refusal.
        source: io::Error,
    },
    /// The kernel starts no thread, or gives no descriptor.
    #[error("cannot start a thread of the group: {source}; is a limit reached (ulimit -u, ulimit -n)?")]
    Thread {
        /// The kernel's refusal.
        source: io::Error,
    },
    /// No groups can be made of a group.
    #[error("the group cannot be split: {why}")]
    Split {
        /// Why.
        why: String,
    },
    /// The group failed while it was formed.
    #[error("the group failed while it was formed: {0}")]
    Cause(Arc<Cause>),
    /// Rank 0's store does not answer as it should.
    #[error("the store at {address} failed: {why}")]
    Store {
        /// Rank 0's address.
        address: String,
        /// What it said.
        why: String,
    },
}

/// "rank 3", or "ranks 3, 4".
fn list(ranks: &[usize]) -> String {
    let names: Vec<_> = ranks.iter().map(usize::to_string).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, names.join(", "))
}
