//! For tests: what they need of the machine, a table of those that did not run, and an allocator that counts what code holds on
//! the heap.
//!
//! A test program that uses this crate has its allocator, which counts and passes everything on to the system's.

pub mod heap;
mod needs;

pub use needs::{Need, cuda, mpirun, pytorch, s3, skip, time};
