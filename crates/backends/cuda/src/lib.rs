//! NVIDIA's GPUs: a plan becomes CUDA work, which is planned without a GPU, printed, and checked.
//!
//! The kernels are in `kernels/`, in CUDA C++ that also compiles for the host, where tests run them.

pub mod bus;
mod check;
pub mod cublas_lt;
pub mod cudnn;
mod device;
mod driver;
mod engines;
mod error;
mod gpu;
mod kernels;
pub mod libraries;
mod lower;
mod management;
mod nccl;
mod program;
pub mod roofline;
mod seen;
mod sequence;
#[cfg(test)]
mod test_support;
mod tune;
mod way;
mod work;

pub use device::{count, idle, is_there, open, open_with};
pub use error::CudaError;
pub use seen::seen;
