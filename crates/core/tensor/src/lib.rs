//! Element types, shapes, aligned memory and counter-based random numbers: the foundation of all other crates.
//!
//! Nothing here holds state between calls. In particular, the random numbers are pure functions of their purpose.

mod bf16;
mod buffer;
mod dtype;
mod f16;
mod host;
pub mod random;
mod shape;

pub use bf16::Bf16;
pub use buffer::AlignedBuffer;
pub use dtype::DType;
pub use f16::F16;
pub use host::{HostBuffer, HostMemory, HostRegion, SystemMemory};
pub use random::RandomStream;
pub use shape::Shape;
