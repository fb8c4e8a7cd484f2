//! The kernels of `kernels/`, each as a function from operands to [`Kernel`]. Those that one operation has for itself are in
//! its file of `ops`.
//!
//! A kernel is plain CUDA C++ and takes one struct. Tests compile it for the host, where the
//! threads of a block are fibers, and check it against the reference.
//!
//! Sizes are those of a plan that the program has accepted: no value has 2^32 pixels, rows or
//! channels. Every operand begins at a multiple of 16 bytes.

pub(crate) mod average;
pub(crate) mod bias;
pub(crate) mod binaries;
pub(crate) mod elementwise;
pub(crate) mod gather;
pub(crate) mod metrics;
pub(crate) mod operands;
pub(crate) mod pooling;
pub(crate) mod rows;
pub(crate) mod samples;
pub(crate) mod step;

use enmasse_tensor::DType;

use crate::work::{Argument, Kernel};

/// Threads of a block.
pub(crate) const THREADS: u32 = 256;

/// Multiprocessors of an H200. Grids are chosen for it, and are constants, so that results do not depend on the GPU.
pub(crate) const SMS: usize = 132;

/// The most blocks of a kernel that loops over its work.
pub(crate) const BLOCKS: usize = SMS * 8;

/// Blocks for `items`, one for each thread; further ones are a loop's.
pub(crate) fn blocks(items: usize) -> [u32; 3] {
    [items.div_ceil(THREADS as usize).clamp(1, BLOCKS) as u32, 1, 1]
}

/// Blocks for a pass over elements, 16 bytes for each thread.
pub(crate) fn pass(elements: usize, dtype: DType) -> [u32; 3] {
    blocks(elements.div_ceil(16 / dtype.size()))
}

/// A kernel with blocks of [`THREADS`].
pub(crate) fn kernel(name: impl Into<String>, grid: [u32; 3], arguments: Vec<Argument>) -> Kernel {
    Kernel { name: name.into(), grid, block: THREADS, arguments }
}

/// A kernel's name for activations of this type.
pub(crate) fn named(name: &str, dtype: DType) -> String {
    format!("{name}_{dtype}")
}
