//! A rank's part in monitoring that all ranks are alive.

use crate::control::Control;
use crate::server::Server;

/// A rank's connection for liveness, held as long as the group exists. Dropping it says goodbye.
pub(crate) enum Liveness {
    /// Of rank 0.
    Server(Server),
    /// Of every other rank.
    Control(#[expect(dead_code, reason = "held for its drop")] Control),
}

impl Liveness {
    pub(crate) fn server(&self) -> Option<&Server> {
        match self {
            Liveness::Server(server) => Some(server),
            Liveness::Control(_) => None,
        }
    }
}
