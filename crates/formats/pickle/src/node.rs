//! Objects while the machine builds them: numbered, so that lists can grow after they were shared.

use crate::Object;

/// An object under construction.
pub(crate) struct Node {
    pub kind: Kind,
    /// Elements; for a dictionary alternating keys and values; for a call as its kind says.
    pub children: Vec<NodeId>,
}

/// An object's index. Every object takes an opcode, of which there are at most `u32::MAX`.
pub(crate) type NodeId = u32;

pub(crate) enum Kind {
    Leaf(Object),
    List,
    Tuple,
    Dict,
    Set,
    /// The children are function and arguments, then elements, or alternating keys and values.
    Call {
        state: Option<NodeId>,
        pairs: bool,
    },
    Persistent,
}
