//! The reference device: any plan in f64 with plain loops, collectives included. The oracle of every other device's
//! tests.
//!
//! Clarity comes before speed. One program hosts all shards of its plan, or a rank's part of them, in lock-step: an instruction
//! is carried out for every shard before the next one starts, and a collective is a loop over all shards' values in the
//! fixed tree. State is kept per shard, which lets a test prove that all shards stay the same. Every value has memory
//! of its own, so the results say what a plan *means*; [`aliasing_is_safe`] tells whether the places it gives its
//! values respect that.

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
