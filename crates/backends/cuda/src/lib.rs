//! NVIDIA's GPUs: a plan becomes CUDA work, which is planned without a GPU, printed, and checked.
//!
//! The kernels are in `kernels/`, in CUDA C++ that also compiles for the host, where tests run them.
//!
//! Use it through `enmasse_device::Device`, on a machine with NVIDIA's driver. The binary that holds it runs without one.
//!
//! ```
//! use enmasse_device::DeviceRequest;
//! match enmasse_cuda::count() {
//!     Some(gpus) if gpus > 0 => println!("{}", enmasse_cuda::open(&DeviceRequest::default())?.name()),
//!     _ => println!("no GPU is visible: {}", enmasse_cuda::open(&DeviceRequest::default()).err().expect("no GPU")),
//! }
//! # Ok::<(), enmasse_device::DeviceError>(())
//! ```

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
mod operands;
mod ops;
mod optimizers;
mod program;
pub mod roofline;
mod seen;
mod sequence;
mod status;
#[cfg(test)]
mod test_support;
mod tune;
mod way;
mod work;

pub use device::{count, idle, is_there, open, open_with};
pub use error::CudaError;
pub use seen::seen;
pub use status::{GpuProcess, GpuStatus, status};
