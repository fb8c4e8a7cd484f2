//! How long a group waits for its ranks.
//!
//! Every operation has its own deadline, so a live rank that stalls does not stall the others for
//! ever. The operations of another library (NCCL, MPI) have the same deadline, warning, record and
//! cause by `Group::watch`.

use std::time::{Duration, Instant};

use crate::algorithm::AlgorithmChoice;

/// A group's options besides its members and transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupOptions {
    /// The algorithm of the group's all-reduces; the same on all ranks. Between nodes the group has the connections that it needs;
    /// with [`Algorithm::Direct`](crate::Algorithm::Direct) it has those of every algorithm.
    pub all_reduce: AlgorithmChoice,
    /// Delay before each operation, which simulates a slow network in tests of overlap.
    pub delay_per_operation: Duration,
    /// How long a rank waits in an operation before the group fails and names the missing ranks: ten minutes, like
    /// PyTorch's NCCL groups.
    pub timeout: Duration,
    /// How long a rank waits before observers are told: half a minute.
    pub stall_warning: Duration,
}

impl Default for GroupOptions {
    fn default() -> Self {
        GroupOptions {
            all_reduce: AlgorithmChoice::default(),
            delay_per_operation: Duration::ZERO,
            timeout: Duration::from_secs(600),
            stall_warning: Duration::from_secs(30),
        }
    }
}

/// The time after `limit`. One that is too long for the clock, such as [`Duration::MAX`], ends after a hundred years.
pub(crate) fn deadline_after(limit: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(limit).unwrap_or_else(|| now + Duration::from_secs(100 * 365 * 24 * 3600))
}
