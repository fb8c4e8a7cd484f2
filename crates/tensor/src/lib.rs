//! Element types, shapes, aligned memory and counter-based random numbers: what every other crate stands on.
//!
//! Nothing here holds state between calls; in particular the random numbers are pure functions of what they are for.

mod bf16;
mod buffer;
mod dtype;
mod host;
mod peak;
pub mod random;
mod shape;

pub use bf16::Bf16;
pub use buffer::AlignedBuffer;
pub use dtype::DType;
pub use host::{HostBuffer, HostMemory, HostRegion, SystemMemory};
pub use peak::peak_rss_bytes;
pub use random::RandomStream;
pub use shape::Shape;
