//! The trait of devices: a device compiles whole plans to a program, which owns its memory.
//!
//! The trait is deliberately small. A program loads and stores named tensors, runs the instructions of a step, and returns
//! the metrics of an earlier step. The device decides everything else, such as kernels, threads and packing. This crate also
//! holds the code that devices share: which shards a program hosts, whether a batch fits, where a named tensor lies, what the
//! metrics of a step mean, and which steps are in flight.
//!
//! Use it to write a device, or a loop that runs on all of them.
//!
//! ```
//! use enmasse_device::{Device, DeviceError, HostBatch, StepInputs};
//! use enmasse_graph::{Mode, Phase, Plans};
//!
//! /// The loss of one training step from parameters that are zero.
//! fn first_loss(device: &dyn Device, plans: Plans, batch: HostBatch) -> Result<f64, DeviceError> {
//!     let mut program = device.compile(plans, None)?;
//!     let inputs = StepInputs { learning_rate: 0.1, ..StepInputs::evaluation(batch.into()) };
//!     let ticket = program.submit(Mode::Train, &Phase::ALL, &inputs)?;
//!     Ok(program.metrics(ticket)?.loss)
//! }
//! ```

mod batch;
mod error;
mod groups;
mod hosting;
mod ledger;
mod metrics;
mod program;
mod request;
mod roofline;
mod schedule;
mod seen;
mod stages;
mod tensor_parallel;
mod tensors;

pub use batch::{HostBatch, StepBatch, check_batch};
pub use error::DeviceError;
pub use groups::ProgramGroups;
pub use hosting::Hosting;
pub use ledger::{Ledger, Ticket};
pub use metrics::{LossScale, StepMetrics, first_non_finite, step_metrics};
pub use program::{Device, DeviceUsage, Fill, InstructionSpan, Memory, Program, Read, StepInputs, Tuned, Which};
pub use request::{DeviceRequest, Summation};
pub use roofline::{Bound, LeastTime, Roofline};
pub use schedule::ShardSchedule;
pub use seen::Seen;
pub use stages::{RankStage, StageLinks};
pub use tensor_parallel::TensorRank;
pub use tensors::{ProgramTensor, check_same_state, find_state, find_tensor, from_torch, to_torch};
