//! Elastic jobs: `--nnodes MIN:MAX`. Nodes may join and leave; between two attempts the ranks are assigned anew.
//!
//! Every node runs an agent. The agent that listens at the rendezvous endpoint is also the *leader*: it admits the
//! others, starts an attempt when there are enough, and stops all workers when a node is lost, leaves, joins, or fails.
//! Both sides are state machines without IO and without a clock ([`leader`], [`member`]): they take events and the
//! time, and return actions, so that thousands of seeded schedules of faults run in virtual time.
//!
//! Invariants under all failures:
//!
//! - An agent never runs two attempts with the same number, nor an older one after a newer one. Every message about
//!   workers names its attempt, and each attempt has its own token, so that workers left over from another attempt are
//!   refused as strangers.
//! - Two attempts of one leader never overlap, even if the network is cut: an agent that has had no answer from its
//!   leader for the time of a *lease* kills its workers, and the leader waits for longer than that.
//! - Two leaders may not know of each other, if the endpoint has moved to another machine while the old leader lives.
//!   The old one gives up as soon as it finds another at its endpoint. Until then each may run a world. The run folder,
//!   which takes the checkpoints of one attempt only, decides between them.
//!
//! Workers are restarted at every change. Changing a world in place would need one more answer of the leader where it
//! now sends [`message::ToMember::Stop`], with an epoch next to the attempt's number.
//!
//! The driver (`leader_server`, `agent`, `run`) does the IO, and decides nothing.

mod agent;
mod drain;
mod leader;
mod leader_server;
mod member;
pub(crate) mod message;
mod run;
#[cfg(test)]
mod simulation;

use std::sync::Arc;
use std::time::Duration;

use enmasse_comm::Token;

pub use drain::{DrainError, drain};
pub use run::{ElasticError, Ending, launch_elastic};

/// Time since a fixed moment, by a clock that never decreases.
type Time = Duration;

/// Prints lines for the user, from any thread.
type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// Where agents meet, and the secret that admits them.
#[derive(Clone, Debug)]
struct Endpoint {
    host: String,
    port: u16,
    token: Token,
}

impl Endpoint {
    /// The endpoint of a job with this token. Where only this machine can reach it, the user's own secret is enough.
    fn new((host, port): (String, u16), token: Option<Token>) -> Result<Self, ElasticError> {
        let token = match token {
            Some(token) => token,
            None if leader_server::names_loopback(&host) => Token::of_user()?,
            None => return Err(ElasticError::TokenRequired { endpoint: format!("{host}:{port}") }),
        };
        Ok(Endpoint { host, port, token })
    }
}

/// A job whose nodes may join and leave.
#[derive(Clone, Debug)]
pub struct Elastic {
    /// Fewest nodes of an attempt.
    pub least: usize,
    /// Most nodes of an attempt; further nodes wait until one of those is gone.
    pub most: usize,
    /// Where the nodes meet: host and port. The host must resolve to the same node on all of them.
    pub endpoint: (String, u16),
    /// The secret of the job, required unless the endpoint is a loopback address.
    pub token: Option<Token>,
    /// The address at which workers of other nodes reach this one; by default the one from which it connects.
    pub local_address: Option<String>,
    /// Durations.
    pub timing: Timing,
}

/// Time limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// An agent that has had no answer from its leader for this long kills its workers.
    pub lease: Duration,
    /// How long to wait for more nodes once the least number has joined, and to gather new nodes before a restart for
    /// them.
    pub last_call: Duration,
    /// How long to wait for the least number of nodes, or for a leader.
    pub join: Duration,
    /// How long an agent may take to stop its workers before it is given up.
    pub stop: Duration,
}

impl Default for Timing {
    /// A lost node costs 5 s; a lost leader is awaited for 10 min, as under torchrun.
    fn default() -> Self {
        Timing {
            lease: Duration::from_secs(4),
            last_call: Duration::from_secs(5),
            join: Duration::from_secs(600),
            stop: Duration::from_secs(60),
        }
    }
}

impl Timing {
    /// The time between two heartbeats.
    pub(crate) fn beat(&self) -> Duration {
        self.lease / 4
    }

    /// After this long without a heartbeat, an agent's lease has ended, even if its clock is wrong by up to a quarter.
    pub(crate) fn fence(&self) -> Duration {
        self.lease + self.lease / 4
    }
}
