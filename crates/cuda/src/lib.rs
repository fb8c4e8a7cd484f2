//! NVIDIA's GPUs: a plan becomes CUDA work, which is planned without a card, printed, and checked.
//!
//! The kernels are in `kernels/`, in CUDA C++ that also compiles for the host, where tests run them.

pub mod cublas_lt;
pub mod cudnn;
mod driver;
mod error;
mod kernels;
pub mod libraries;
#[cfg(test)]
mod test_support;
mod work;

pub use error::CudaError;
