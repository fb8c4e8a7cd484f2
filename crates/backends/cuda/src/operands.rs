//! The operands of a library's engine, once they have addresses.

/// Addresses in the GPU's memory.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// The input, or its gradient.
    pub x: u64,
    /// The weights, or their gradient.
    pub w: u64,
    /// The output, or its gradient.
    pub y: u64,
    /// The bias, where there is one.
    pub bias: u64,
    /// At least as many bytes as the plan takes.
    pub workspace: u64,
}
