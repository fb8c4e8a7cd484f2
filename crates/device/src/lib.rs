//! What a device is: it takes whole plans and gives back a program, which owns its memory.
//!
//! The trait is small on purpose. A program loads and stores named tensors, runs the instructions of a step, and tells the
//! metrics of an earlier step; everything else (which kernels, which threads, what is packed how) is the device's own affair.
//! What devices have in common is here, once: which shards a program hosts, whether a batch fits, where a named tensor lies,
//! what the metrics of a step mean, and which steps are in flight.

mod batch;
mod error;
mod hosting;
mod ledger;
mod metrics;
mod program;
mod request;
mod tensors;

pub use batch::{Batch, HostBatch, check_batch};
pub use error::DeviceError;
pub use hosting::Hosting;
pub use ledger::{Ledger, Ticket};
pub use metrics::{StepMetrics, first_non_finite, step_metrics};
pub use program::{Device, Fill, Memory, Program, Read, StepInputs, Which};
pub use request::DeviceRequest;
pub use tensors::{Tensor, check_same_state, find_tensor, from_torch, to_torch};
