//! The request for a device: one rank's settings for a kind of device.

/// A rank's share of a machine, and its choices of how to compute. A device refuses choices that it does not support.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRequest {
    /// The number of the device among the machine's devices of this kind. `None` if they have no numbers or the user named
    /// none.
    pub ordinal: Option<usize>,
    /// Computing threads of each rank that shares this rank's cores.
    pub threads: Vec<usize>,
    /// This rank's index in `threads`.
    pub local_rank: usize,
    /// The instruction-set level (`--isa`); `None` for the machine's best.
    pub isa: Option<String>,
    /// Whether convolutions use only direct sums (`--exact`).
    pub exact: bool,
}

impl DeviceRequest {
    /// The number of computing threads of this rank.
    pub fn own_threads(&self) -> usize {
        self.threads.get(self.local_rank).copied().unwrap_or(1)
    }
}

impl Default for DeviceRequest {
    /// The only rank on the machine, with a thread for each core that the process may use.
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        DeviceRequest { ordinal: None, threads: vec![threads], local_rank: 0, isa: None, exact: false }
    }
}
