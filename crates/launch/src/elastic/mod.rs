//! Elastic jobs: `--nnodes MIN:MAX`. Nodes may come and go; between two attempts the ranks are dealt out anew.
//!
//! Every node runs an agent. The one that listens at the rendezvous endpoint is also the *leader*: it takes the others in,
//! starts an attempt when enough are there, and stops all workers when a node is lost, leaves, comes, or fails. Both sides
//! are state machines without IO and without a clock ([`Leader`], [`Member`]): events and the time go in, actions come
//! out, so that thousands of seeded schedules of faults run in virtual time.
//!
//! What always holds, whatever fails:
//!
//! - An agent never runs two attempts of one number, nor an older one after a newer. Every message about workers names its
//!   attempt, and each attempt has a token of its own, so that workers left over from another one are strangers.
//! - Two attempts of one leader never overlap, not even when the network is cut: an agent that has heard nothing from its
//!   leader for the time of a *lease* kills its workers, and the leader waits for longer than that.
//! - Leaders that do not know of each other (the endpoint has moved to another machine while the old one lives) part as
//!   soon as the old one finds another at its endpoint. Until then each may run a world; the run folder, which takes
//!   the checkpoints of one attempt only, decides between them.
//!
//! Workers are restarted at every change. Changing a world in place would be one more answer of the leader where it now
//! sends [`ToMember::Stop`], with an epoch beside the attempt's number.

mod agent;
mod hall;
mod leader;
mod member;
mod message;
mod run;
#[cfg(test)]
mod simulation;

use std::sync::Arc;
use std::time::Duration;

use enmasse_comm::Token;

pub use run::{ElasticError, Ending, launch_elastic};

/// Time since any fixed moment, by a clock that never goes back.
type Time = Duration;

/// Takes lines for the user, from any thread.
type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// Where agents meet, and what proves that they may.
#[derive(Clone, Debug)]
struct Endpoint {
    host: String,
    port: u16,
    token: Token,
}

/// A job whose nodes may come and go.
#[derive(Clone, Debug)]
pub struct Elastic {
    /// Fewest nodes of an attempt.
    pub least: usize,
    /// Most nodes of an attempt; others wait until one of those is gone.
    pub most: usize,
    /// Where the nodes meet: host and port. The host must lead to one node on all of them.
    pub endpoint: (String, u16),
    /// The secret of the job, needed unless the endpoint is a loopback address.
    pub token: Option<Token>,
    /// Where workers of other nodes reach this one; by the address it connects from unless set.
    pub local_address: Option<String>,
    /// Durations.
    pub timing: Timing,
}

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// An agent that has not heard from its leader for so long kills its workers.
    pub lease: Duration,
    /// How long to wait for more nodes once the least number is there, and to gather newcomers before a restart for them.
    pub last_call: Duration,
    /// How long to wait for the least number of nodes, or for a leader.
    pub join: Duration,
    /// How long an agent may take to stop its workers before it is given up.
    pub stop: Duration,
}

impl Default for Timing {
    /// A lost node costs 5 s, a lost leader is waited for 10 min as under torchrun.
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
    /// Between two signs of life.
    pub(crate) fn beat(&self) -> Duration {
        self.lease / 4
    }

    /// After so long without a sign of life, an agent's lease has ended, by any clock that is not a quarter off.
    pub(crate) fn fence(&self) -> Duration {
        self.lease + self.lease / 4
    }
}
