//! Activations as rows of channels: how passes and reductions over them are divided among threads.

use enmasse_tensor::DType;

use crate::kernels::operands::{COUNTERS, SCRATCH};
use crate::kernels::{BLOCKS, SMS, THREADS, kernel};
use crate::work::Argument::{Change, Null, U32, U64, Write};
use crate::work::{Argument, Kernel, Span};

/// Bytes that a thread moves by one instruction.
pub(crate) const PACKET_BYTES: usize = 16;

/// A feature map, or a matrix, whose dimensions but the last are taken together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    /// Pixels of all samples.
    pub rows: usize,
    pub channels: usize,
    /// Of the feature map's elements.
    pub dtype: DType,
}

impl Rows {
    /// Channels that a thread takes together: those of [`PACKET_BYTES`], if the channels divide so.
    fn packet(self) -> usize {
        let wide = PACKET_BYTES / self.dtype.size();
        if self.channels.is_multiple_of(wide) { wide } else { 1 }
    }

    /// Packets of all rows.
    pub(crate) fn packets(self) -> usize {
        self.rows * (self.channels / self.packet())
    }

    /// Blocks for a pass by `for_rows` in rows.h.
    pub(crate) fn pass(self) -> [u32; 3] {
        self.pass_of(BLOCKS)
    }

    /// The same with at most so many blocks, but at least as many threads as packets in a row.
    pub(crate) fn pass_of(self, most: usize) -> [u32; 3] {
        let threads = THREADS as usize;
        let least = (self.channels / self.packet()).div_ceil(threads);
        [self.packets().div_ceil(threads).clamp(1, most.max(least)) as u32, 1, 1]
    }

    /// The sizes as every kernel takes them.
    pub(crate) fn arguments(self) -> [Argument; 2] {
        [U64(self.rows as u64), U32(self.channels as u32)]
    }
}

/// Blocks of a reduction that an SM holds at a time: registers allow as many (docs/cuda-kernels.md, which a test of batch norm reads).
pub(crate) const RESIDENT: usize = 4;

/// Blocks of a reduction, of which each leaves a result to be combined. All run at a time, so that none is left for a last wave.
const REDUCTION_BLOCKS: usize = SMS * RESIDENT;

/// Bytes of a row for each block, if the row has as many: a line of the cache. With wider slabs fewer blocks would combine more
/// results each, alone and at the end.
const SLAB_BYTES: usize = 128;

/// Rows for each thread, so that the table is small beside what is read.
const MIN_ROWS: usize = 4;

/// Rows for each thread up to which a block takes all rows, with fewer packets of each: to combine chunks would take longer.
const MAX_ROWS_AT_ONCE: usize = 8;

/// Packets of a row for such a block: 64 bytes.
const PACKETS_AT_ONCE: usize = 4;

/// A reduction over rows by one kernel. It divides the rows into chunks and the channels into slabs, and leaves a result for each chunk
/// and channel in scratch. The last block of a slab combines those of all chunks, in a fixed order. A single chunk needs no scratch.
pub(crate) struct Reduction {
    size: Rows,
    slabs: usize,
    packets: usize,
    chunk: usize,
    chunks: usize,
}

impl Reduction {
    pub(crate) fn new(size: Rows) -> Self {
        let row = size.channels / size.packet();
        let narrow = row.min(PACKETS_AT_ONCE);
        let lanes = THREADS as usize / narrow;
        if size.rows <= MAX_ROWS_AT_ONCE * lanes {
            return Reduction { size, slabs: row.div_ceil(narrow), packets: narrow, chunk: size.rows, chunks: 1 };
        }
        let slabs = row.div_ceil(SLAB_BYTES / (size.packet() * size.dtype.size()));
        let packets = row.div_ceil(slabs);
        let lanes = THREADS as usize / packets;
        let most = (REDUCTION_BLOCKS / slabs).max(1);
        let chunk = size.rows.div_ceil(most).max(MIN_ROWS * lanes).next_multiple_of(lanes);
        Reduction { size, slabs, packets, chunk, chunks: size.rows.div_ceil(chunk) }
    }

    /// The kernel of that name. It takes `operands`, and writes `results` from `sums` numbers of each channel.
    pub(crate) fn kernel(&self, name: String, operands: &[Argument], results: &[Argument], sums: usize) -> Kernel {
        let [table, counters] = match self.chunks {
            1 => [Null; 2],
            chunks => {
                let table = Span { place: SCRATCH, bytes: chunks * sums * self.size.channels * size_of::<f32>() };
                let counters = Span { place: COUNTERS, bytes: self.slabs * size_of::<u32>() };
                [Write(table), Change(counters)]
            }
        };
        let division = [self.packets, self.chunk].map(|number| U32(number as u32));
        let arguments = [operands, &[table, counters], &self.size.arguments(), &division, results].concat();
        kernel(name, [self.slabs as u32, self.chunks as u32, 1], arguments)
    }
}
