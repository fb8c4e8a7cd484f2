//! Errors of devices.

use std::sync::Arc;

use enmasse_comm::Cause;
use thiserror::Error;

/// An error of a device or of a program.
#[derive(Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device has too little memory.
    #[error("no memory for {bytes} bytes of {arena}: use a smaller `batch` or `size`")]
    Memory {
        /// The arena or buffer that was being allocated.
        arena: String,
        /// Its size in bytes.
        bytes: usize,
    },
    /// There is no tensor with that name.
    #[error("the program holds no tensor named {0}")]
    Name(String),
    /// The number of values differs from the tensor's.
    #[error("tensor {name} has {expected} elements, got {found}")]
    Size {
        /// The tensor.
        name: String,
        /// Number of elements of the tensor.
        expected: usize,
        /// Number of values given.
        found: usize,
    },
    /// The batch does not fit the plan.
    #[error("batch does not fit the plan: {0}")]
    Batch(String),
    /// The device or program does not support the request.
    #[error("{0}")]
    Unsupported(String),
    /// A shard's loss is infinite or not a number. Parameters are as before the step.
    #[error("non-finite loss {loss} on shard {shard}")]
    NonFinite {
        /// The first shard with such a loss.
        shard: usize,
        /// Its loss.
        loss: f64,
    },
    /// The group failed.
    #[error(transparent)]
    Cause(#[from] Arc<Cause>),
}

impl DeviceError {
    /// The error of a program that has no plan for training.
    pub fn only_evaluates() -> Self {
        DeviceError::Unsupported("the program was compiled only for evaluation".into())
    }
}

/// The text of [`std::fmt::Display`]: a `main` that returns the error prints this.
impl std::fmt::Debug for DeviceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}
