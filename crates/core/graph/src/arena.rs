//! The regions of memory that a plan's values lie in, and places and ranges in them.

use std::fmt;
use std::ops::Range;

use enmasse_tensor::DType;

/// A region of memory that a device allocates once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Arena {
    /// The data of each batch.
    Input,
    /// Parameters: first trainable ones, in the order in which backward completes their gradients, then frozen ones.
    Parameters,
    /// Running statistics.
    Buffers,
    /// Gradients of trainable parameters, at the offsets of the parameters, then values carried with the last bucket.
    Gradients,
    /// State of the optimiser, one arena per state name, at the offsets of the parameters.
    Optimizer(usize),
    /// Averages of all parameters over the steps, at their offsets, then of all buffers.
    Average,
    /// The state of loss scaling.
    LossScale,
    /// What this rank has lost by compressing gradients, at their offsets. Each rank has its own.
    Residuals,
    /// Parameters and running statistics of a teacher, which no step changes.
    Teacher,
    /// Values that live within a step. Those whose lifetimes do not overlap share memory.
    Activations,
    /// No memory: values that are never stored as a whole ([`crate::Value::in_cache`]).
    Cache,
}

impl Arena {
    /// Whether its contents outlive a step.
    pub fn outlives_step(self) -> bool {
        match self {
            Arena::Parameters | Arena::Buffers | Arena::Optimizer(_) | Arena::Average => true,
            Arena::LossScale | Arena::Residuals | Arena::Teacher => true,
            Arena::Input | Arena::Gradients | Arena::Activations | Arena::Cache => false,
        }
    }
}

impl fmt::Display for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Arena::Input => f.write_str("input"),
            Arena::Parameters => f.write_str("parameters"),
            Arena::Buffers => f.write_str("buffers"),
            Arena::Gradients => f.write_str("gradients"),
            Arena::Optimizer(slot) => write!(f, "optimizer{slot}"),
            Arena::Average => f.write_str("average"),
            Arena::LossScale => f.write_str("loss_scale"),
            Arena::Residuals => f.write_str("residuals"),
            Arena::Teacher => f.write_str("teacher"),
            Arena::Activations => f.write_str("activations"),
            Arena::Cache => f.write_str("cache"),
        }
    }
}

/// The place of a value. Offsets are multiples of [`crate::Plan::ALIGNMENT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The arena.
    pub arena: Arena,
    /// Bytes from its start.
    pub offset: usize,
}

/// A range of the gradient arena that one collective sums over ranks, in elements of its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Type of its elements.
    pub dtype: DType,
    /// Type in which they cross between nodes: another one than theirs if the sum is compressed, with error feedback.
    pub sent: DType,
    /// First element.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
}

impl Bucket {
    /// The index after the last element.
    pub fn end(&self) -> usize {
        self.start + self.len
    }

    /// Whether its values are rounded where they cross between nodes.
    pub fn is_compressed(&self) -> bool {
        self.sent != self.dtype
    }

    /// The same range in bytes.
    pub fn bytes(&self) -> Range<usize> {
        self.start * self.dtype.size()..(self.start + self.len) * self.dtype.size()
    }
}
