//! How long a group waits.

use std::time::Duration;

use crate::transport::Patience;

/// How a group behaves beside its members and transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupOptions {
    /// Time to let pass before each operation is carried out: a slow network, for tests of what overlaps with it.
    pub delay_per_operation: Duration,
    /// How long a rank waits in an operation for others before the group fails, naming them: ten minutes, as PyTorch's NCCL
    /// groups do.
    pub timeout: Duration,
    /// How long before observers hear of it: half a minute.
    pub stall_warning: Duration,
}

impl Default for GroupOptions {
    fn default() -> Self {
        GroupOptions {
            delay_per_operation: Duration::ZERO,
            timeout: Duration::from_secs(600),
            stall_warning: Duration::from_secs(30),
        }
    }
}

impl GroupOptions {
    pub(crate) fn patience(&self) -> Patience {
        Patience { timeout: self.timeout, warning: self.stall_warning }
    }
}
