//! For tests: NVIDIA's driver and libraries over host memory, and our kernels compiled for the host.
//!
//! The sources are C++ in `cpp/`, and the kernels of the `cuda` crate as they are. The first test that needs them compiles
//! them with `c++`; later ones find what it built beside the test programs.

mod build;
mod dynamic;
mod kernels;

pub use build::folder;
pub use kernels::{Kernels, Order};
