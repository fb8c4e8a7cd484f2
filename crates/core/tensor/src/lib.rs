//! Element types, shapes, aligned memory and counter-based random numbers: the foundation of all other crates.
//!
//! Nothing here holds state between calls. In particular, the random numbers are pure functions of their purpose.
//!
//! Use it for memory that SIMD kernels and other processes can share, and for random numbers that any rank can compute again.
//!
//! ```
//! use enmasse_tensor::{DType, RandomStream, Shape};
//! // The flip of sample 42 in epoch 3 is the same on every rank, in any order, and after a resume.
//! let flips = |sample| RandomStream::new(7, "flip", 3, sample).unit() < 0.5;
//! assert_eq!(flips(42), flips(42));
//! assert_eq!(Shape::from([8, 224, 224, 3]).elements() * DType::F32.size(), 4_816_896);
//! ```

mod buffer;
mod dtype;
mod host;
pub mod random;
mod shape;

pub use buffer::AlignedBuffer;
pub use dtype::DType;
pub use half::{bf16 as Bf16, f16 as F16};
pub use host::{HostBuffer, HostMemory, HostRegion, SystemMemory};
pub use random::RandomStream;
pub use shape::Shape;
