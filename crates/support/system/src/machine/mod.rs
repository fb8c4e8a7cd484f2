//! The memory and processor time that the kernel leaves to this process: what the machine has, the limits of its control
//! groups, the use of the process itself, and the processors near a device. Files below `/proc` and `/sys` are read here;
//! their texts are read by pure functions.

mod cgroup;
mod free;
mod meminfo;
mod near;
mod process;
mod processor;

pub use cgroup::Limits;
pub use free::{Bound, Free};
pub use meminfo::MemInfo;
pub use near::NearProcessors;
pub use process::{ResidentMemory, peak_rss_bytes};
pub use processor::ProcessorTime;
