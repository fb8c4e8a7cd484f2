//! The memory through which a group's data pass.

/// Bytes of the memory through which a group's data pass in the process of a rank. The kernel gives it when it is first used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferBytes {
    /// What this rank writes to, and no other rank brings.
    pub own: usize,
    /// What the other ranks of this machine write to and this one reads: the same memory as theirs.
    pub of_local_peers: usize,
}
