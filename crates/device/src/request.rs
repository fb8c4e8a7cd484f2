//! What one rank asks of a kind of device.

/// A rank's share of a machine, and how it wants to compute. A device refuses what has no meaning for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRequest {
    /// Which of the machine's devices of this kind, where they have numbers and the user named some.
    pub ordinal: Option<usize>,
    /// Computing threads of each rank that shares this rank's cores.
    pub threads: Vec<usize>,
    /// This rank's place among them.
    pub local_rank: usize,
    /// The instruction-set level (`--isa`); the machine's best if none is named.
    pub isa: Option<String>,
    /// Convolutions by direct sums only (`--exact`).
    pub exact: bool,
}

impl DeviceRequest {
    /// Computing threads of this rank.
    pub fn own_threads(&self) -> usize {
        self.threads.get(self.local_rank).copied().unwrap_or(1)
    }
}

impl Default for DeviceRequest {
    /// A rank alone on the machine, with a thread for each core that the process may use.
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        DeviceRequest { ordinal: None, threads: vec![threads], local_rank: 0, isa: None, exact: false }
    }
}
