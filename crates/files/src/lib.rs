//! Files that appear whole or not at all; regular files, read within limits; `~` in paths.
//!
//! Files for other processes are written to a temporary file, synced and renamed into place, so that no reader sees
//! half of one. Nothing here knows a file's purpose.

mod error;
mod home;
mod regular;
mod staging;
mod whole;

pub use error::FileError;
pub use home::{NoHome, expand_home};
pub use regular::{append_limited, append_regular, name_of, open_regular, read_regular, read_text, require, reserve};
pub use staging::Staging;
pub use whole::{remove_temporaries, write_whole};
