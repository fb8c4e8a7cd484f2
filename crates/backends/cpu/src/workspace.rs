//! Memory that kernels use within one instruction: sized when the program is compiled, reused by each instruction.

use enmasse_tensor::AlignedBuffer;

use crate::isa::Isa;
use crate::pool::{Pool, Threads};
use crate::region::Region;

/// Workspace that a kernel needs, in f32 values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Workspace {
    /// Shared by all threads: packed weights, partial sums.
    pub shared: usize,
    /// Per thread: packed blocks of activations.
    pub private: usize,
}

impl Workspace {
    /// Workspace that is enough for either, but not for both at once.
    pub(crate) fn max(self, other: Workspace) -> Workspace {
        Workspace { shared: self.shared.max(other.shared), private: self.private.max(other.private) }
    }

    /// Bytes for a number of threads.
    pub(crate) fn bytes(self, threads: usize) -> usize {
        4 * (self.shared + threads * self.private)
    }
}

/// The resources of every kernel: threads, instruction-set level, workspace.
pub(crate) struct Context {
    pub pool: Pool,
    pub isa: Isa,
    /// See [`Workspace::shared`].
    pub shared: Region<f32>,
    /// See [`Workspace::private`]; one region per thread.
    pub private: Vec<Region<f32>>,
    _buffers: Vec<AlignedBuffer>,
}

// SAFETY: the regions lie in the buffers, which the context owns.
unsafe impl Send for Context {}

impl Context {
    /// Threads and workspace for kernels that need at most `workspace`.
    pub(crate) fn new(threads: impl Into<Threads>, isa: Isa, workspace: Workspace) -> std::io::Result<Context> {
        let pool = Pool::new(threads)?;
        let mut buffers = vec![AlignedBuffer::zeroed(4 * workspace.shared)?];
        for _ in 0..pool.threads() {
            buffers.push(AlignedBuffer::zeroed(4 * workspace.private)?);
        }
        let regions: Vec<_> = buffers.iter_mut().map(|buffer| Region::of_mut(buffer.as_f32_mut())).collect();
        Ok(Context { pool, isa, shared: regions[0], private: regions[1..].to_vec(), _buffers: buffers })
    }
}
