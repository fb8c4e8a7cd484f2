//! What goes wrong on a device.

use std::sync::Arc;

use enmasse_comm::Cause;
use thiserror::Error;

/// Why a device could not do what it was asked.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// The device's memory does not suffice.
    #[error("no memory for {bytes} bytes of {arena}: use a smaller --batch or --size")]
    Memory {
        /// What was being allocated.
        arena: String,
        /// How much.
        bytes: usize,
    },
    /// No tensor of that name.
    #[error("the program holds no tensor named {0}")]
    Name(String),
    /// A tensor of another size.
    #[error("tensor {name} has {expected} elements, got {found}")]
    Size {
        /// The tensor.
        name: String,
        /// Elements it has.
        expected: usize,
        /// Elements given.
        found: usize,
    },
    /// The batch does not fit the plan.
    #[error("batch does not fit the plan: {0}")]
    Batch(String),
    /// The plan asks for something this device cannot do.
    #[error("{0}")]
    Unsupported(String),
    /// A shard's loss is infinite or not a number; parameters are as before the step.
    #[error("non-finite loss {loss} on shard {shard}")]
    NonFinite {
        /// The first offending shard.
        shard: usize,
        /// Its loss.
        loss: f64,
    },
    /// The group failed.
    #[error(transparent)]
    Cause(#[from] Arc<Cause>),
}
