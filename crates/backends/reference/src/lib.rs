//! The reference device runs any plan in f64 with plain loops, including collectives. It is the oracle of every other
//! device's tests.
//!
//! Clarity comes before speed. One program hosts all shards of its plan, or a rank's part of them, in lock-step: an
//! instruction runs for every shard before the next one starts, and a collective is a loop over all shards' values in the
//! fixed tree. Each shard has its own state, which lets a test prove that all shards stay equal. Each value has its own
//! memory, so the results define what a plan *means*. [`aliasing_is_safe`] checks that the places of a plan's values
//! preserve this meaning.

mod aliasing;
mod device;
mod dispatch;
mod exchange;
pub mod kernels;
mod program;
mod shard;
mod step;

pub use aliasing::{Problem, UnsafeAliasing, aliasing_is_safe};
pub use device::{Reference, RoundingReference, open};
pub use program::{Difference, ReferenceProgram};
