//! What the operating system gives this process: files that appear whole or not at all, and the memory and processor time that
//! the kernel leaves to it.
//!
//! Nothing here knows what a file or the memory is for.

pub mod files;
pub mod machine;
