//! The nodes of a job: numbered beforehand, or numbered where they meet.

use enmasse_launch::{Nodes, Timing};

/// The nodes of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Known beforehand, each with its number.
    Static(Nodes),
    /// They meet at an endpoint, where they are numbered; they may join and leave.
    Meeting(Meeting),
}

/// Where and how nodes meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// The least number of nodes.
    pub least: usize,
    /// The greatest number of nodes.
    pub most: usize,
    /// Host and port.
    pub endpoint: (String, u16),
    /// How long nodes wait for each other.
    pub timing: Timing,
    /// The name by which other nodes reach this one.
    pub local_address: Option<String>,
}
