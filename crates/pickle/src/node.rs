//! Objects while the machine makes them: numbered, so that lists may grow after they were shared.

use crate::Object;

/// An object under construction.
pub(crate) struct Node {
    pub kind: Kind,
    /// Elements; of a dictionary keys and values in turns; of a call what its kind says.
    pub children: Vec<NodeId>,
}

/// Its place among the objects. Every object costs an opcode, of which there are at most `u32::MAX`.
pub(crate) type NodeId = u32;

pub(crate) enum Kind {
    Leaf(Object),
    List,
    Tuple,
    Dict,
    Set,
    /// Children are function and arguments, then elements, or keys and values in turns.
    Call {
        state: Option<NodeId>,
        pairs: bool,
    },
    Persistent,
}
