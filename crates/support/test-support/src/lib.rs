//! For tests: what they need of the machine, a table of those that did not run, free ports, what was logged, and an allocator that counts what
//! code holds on the heap.
//!
//! A test program that uses this crate has its allocator, which counts and passes everything on to the system's.
//!
//! Use it as a dev-dependency alone.
//!
//! ```
//! use enmasse_test_support::heap::peak_of;
//! let (length, peak) = peak_of(|| vec![0u8; 1000].len());
//! assert_eq!((length, peak), (1000, 1000));
//! ```

pub mod heap;
mod logged;
mod needs;
mod port;

pub use logged::logged;
pub use needs::{Need, browser, cuda, loggers, mpirun, notebook, pytorch, s3, skip, time, weights};
pub use port::free_port;
