//! For tests: NVIDIA's driver and libraries over host memory, and our kernels compiled for the host.
//!
//! The sources are C++ in `cpp/`, and the kernels of the `cuda` crate as they are. The first test that needs them compiles
//! them with `c++`; later ones find what it built beside the test programs.
//!
//! The emulated driver runs work as late as it may. So a missing event, or memory that is reused too
//! early, gives wrong numbers in every test.
//!
//! Use it in tests of `cuda` and of the program, on machines without a GPU. What it cannot show is speed, and what real drivers forbid.
//!
//! ```no_run
//! // The folder of libraries takes the place of NVIDIA's in a process that is started with it.
//! if let Some(libraries) = enmasse_emulation::folder() {
//!     std::process::Command::new("enmasse").arg("doctor").env("ENMASSE_CUDA_LIBRARIES", libraries).status()?;
//! }
//! # Ok::<(), std::io::Error>(())
//! ```

mod build;
mod kernels;

pub use build::folder;
pub use kernels::{Kernels, Order};
