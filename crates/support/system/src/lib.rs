//! What the machine gives this process: files that appear whole or not at all, the memory and processor time that the kernel
//! leaves to it, the vector instructions of the processor, and standard output without a wait for its reader.
//!
//! Nothing here knows what a file or the memory is for.
//!
//! Use it for every file that another process may read, and before a size is chosen by the machine's memory.
//!
//! ```
//! use std::io::Write;
//! use enmasse_system::{files, machine};
//! # let folder = tempfile::tempdir()?;
//! let path = folder.path().join("classes.txt");
//! files::write_whole(&path, |file| file.write_all(b"daisy\n"))?;
//! assert_eq!(files::read_text(&path)?, "daisy\n");
//! assert!(machine::ResidentMemory::gather().own > 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod files;
pub mod machine;
pub mod simd;
pub mod writer;
