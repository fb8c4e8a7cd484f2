//! The request for a device: one rank's settings for a kind of device.

use enmasse_comm::Compression;

/// A rank's share of a machine, and its choices of how to compute. A device refuses choices that it does not support.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRequest {
    /// The number of the device among the machine's devices of this kind. `None` if they have no numbers or the user named
    /// none.
    pub ordinal: Option<usize>,
    /// This rank's number among those of its machine.
    pub local_rank: usize,
    /// Computing threads of each rank that shares this rank's cores.
    pub threads: Vec<usize>,
    /// This rank's index in `threads`.
    pub sharer: usize,
    /// The instruction-set level (`--isa`); `None` for the machine's best.
    pub isa: Option<String>,
    /// Whether convolutions use only direct sums (`--exact`).
    pub exact: bool,
    /// How a library of the device sums gradients over ranks (`--sum`, `--reduce-precision`).
    pub summation: Summation,
}

/// How gradients are summed over ranks. Where no library exchanges them between devices, the order is the group's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Summation {
    /// In the library's order, which depends on the number of ranks.
    #[default]
    Library,
    /// The same of gradients rounded to bf16, as by the hook `bf16_compress_hook` of PyTorch's DDP. Where the ranks' group sums, gradients
    /// cross between nodes in bf16, with error feedback ([`enmasse_comm::Compression`]). Losses and metrics stay f32.
    Bf16,
    /// Gradients cross between nodes in f16, with error feedback. No library does so.
    F16,
    /// In the fixed tree over shards: every rank gathers the sums of all, so that n ranks send n - 1 times the gradients instead of
    /// about twice.
    Tree,
}

impl Summation {
    /// The 16-bit type of gradients on their way between ranks, if they have one.
    pub fn narrow(self) -> Option<Compression> {
        match self {
            Summation::Bf16 => Some(Compression::Bf16),
            Summation::F16 => Some(Compression::F16),
            Summation::Library | Summation::Tree => None,
        }
    }
}

impl DeviceRequest {
    /// The number of computing threads of this rank.
    pub fn own_threads(&self) -> usize {
        self.threads.get(self.sharer).copied().unwrap_or(1)
    }
}

impl Default for DeviceRequest {
    /// The only rank on the machine, with a thread for each core that the process may use.
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let summation = Summation::default();
        DeviceRequest {
            ordinal: None,
            local_rank: 0,
            threads: vec![threads],
            sharer: 0,
            isa: None,
            exact: false,
            summation,
        }
    }
}
