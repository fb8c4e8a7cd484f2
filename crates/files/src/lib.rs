//! Files that appear whole or not at all; `~` in paths.
//!
//! What other processes read is written aside, synced and renamed into place, so that no reader meets half of it. Nothing here
//! knows what a file is for.

mod error;
mod home;
mod staging;
mod whole;

pub use error::FileError;
pub use home::{NoHome, expand_home};
pub use staging::Staging;
pub use whole::{remove_temporaries, write_whole};
