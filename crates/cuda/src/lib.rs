//! NVIDIA's GPUs: a plan becomes CUDA work, which is planned without a card, printed, and checked.
//!
//! The kernels are in `kernels/`, in CUDA C++ that also compiles for the host, where tests run them.

mod error;
mod kernels;
pub mod libraries;
mod work;

pub use error::CudaError;
