//! The reference device runs any plan in f64 with plain loops, including collectives. It is the oracle of every other
//! device's tests.
//!
//! Clarity comes before speed. One program hosts all shards of its plan, or a rank's part of them, in lock-step: an
//! instruction runs for every shard before the next one starts, and a collective is a loop over all shards' values in the
//! fixed tree. Each shard has its own state, which lets a test prove that all shards stay equal. Each value has its own
//! memory, so the results define what a plan *means*. [`aliasing_is_safe`] checks that the places of a plan's values
//! preserve this meaning.
//!
//! Use it to test a device or a pass: what the reference computes is what a plan means.
//!
//! ```
//! use enmasse_device::{Device, HostBatch, StepInputs};
//! use enmasse_graph::{CompileOptions, Mode, Phase, Tensor, compile};
//! use enmasse_reference::Reference;
//!
//! let plans = compile(&|x: Tensor| x.flatten().linear("fc", 10), &CompileOptions::new("softmax", 1, 4, 10))?;
//! let mut program = Reference.compile(plans, None)?;
//! let batch = HostBatch { images: vec![7; 4 * 4 * 3], labels: vec![3], sample_indices: vec![0], ..HostBatch::default() };
//! let ticket = program.submit(Mode::Train, &Phase::ALL, &StepInputs::evaluation(batch.into()))?;
//! // Parameters are zero, so all classes are equally likely.
//! assert!((program.metrics(ticket)?.loss - 10f64.ln()).abs() < 1e-12);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod aliasing;
mod device;
mod exchange;
pub mod ops;
pub mod optimizers;
mod program;
mod shard;
mod step;
#[cfg(test)]
mod test_support;
pub mod tree;
mod window;

pub use aliasing::{Problem, UnsafeAliasing, aliasing_is_safe};
pub use device::{Reference, RoundingReference, open};
pub use program::{Difference, ReferenceProgram};
