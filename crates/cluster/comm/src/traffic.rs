//! How many bytes a rank has exchanged with others.

use std::ops::{Add, Sub};

/// Bytes that a rank has exchanged with others in the operations of a group. Between nodes they are counted where they are handed to
/// the network and taken from it, over TCP with the tags that authenticate them; those that ranks of a node exchange through
/// memory then do not count. Where all ranks share memory, sent are those that a rank has written for others to read, and
/// received those that it has read of others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes for others.
    pub sent: u64,
    /// Bytes of others.
    pub received: u64,
}

impl Add for Traffic {
    type Output = Traffic;

    fn add(self, other: Traffic) -> Traffic {
        Traffic { sent: self.sent + other.sent, received: self.received + other.received }
    }
}

impl Sub for Traffic {
    type Output = Traffic;

    /// What has come since an earlier count.
    fn sub(self, earlier: Traffic) -> Traffic {
        Traffic {
            sent: self.sent.saturating_sub(earlier.sent),
            received: self.received.saturating_sub(earlier.received),
        }
    }
}
