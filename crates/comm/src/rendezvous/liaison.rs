//! A rank's part in watching that all ranks live.

use crate::control::Control;
use crate::server::Server;

/// A rank's part in liveness, for as long as the group lives. Dropping it says goodbye.
pub(crate) enum Liaison {
    /// Rank 0's.
    Server(Server),
    /// Everybody else's.
    Control(#[expect(dead_code, reason = "held for its drop")] Control),
}
