//! NVIDIA's GPUs: a plan becomes CUDA work, which is planned without a card, printed, and checked.
//!
//! The kernels are in `kernels/`, in CUDA C++ that also compiles for the host, where tests run them.

mod card;
mod check;
pub mod cublas_lt;
pub mod cudnn;
mod device;
mod driver;
mod engines;
mod error;
mod kernels;
pub mod libraries;
mod lower;
mod program;
mod sequence;
#[cfg(test)]
mod test_support;
mod work;

pub use device::{open, open_with};
pub use error::CudaError;
