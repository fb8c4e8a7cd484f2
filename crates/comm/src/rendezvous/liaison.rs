//! A rank's part in monitoring that all ranks are alive.

use crate::control::Control;
use crate::server::Server;

/// A rank's connection for liveness, held as long as the group exists. Dropping it says goodbye.
pub(crate) enum Liaison {
    /// Of rank 0.
    Server(Server),
    /// Of every other rank.
    Control(#[expect(dead_code, reason = "held for its drop")] Control),
}

impl Liaison {
    pub(crate) fn server(&self) -> Option<&Server> {
        match self {
            Liaison::Server(server) => Some(server),
            Liaison::Control(_) => None,
        }
    }
}
