//! One program of tests: it is linked once, and its tests run side by side.

mod against_reference;
mod bf16;
mod common;
mod fused;
mod many_ranks;
mod metrics;
mod programs;
mod replicated;
mod stages;
mod state;
mod tensor_parallel;
mod zero;
