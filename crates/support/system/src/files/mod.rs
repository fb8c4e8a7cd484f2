//! Files that appear whole or not at all; regular files, read within limits; locks and free space;
//! `~` in paths; the folder of caches.
//!
//! Files for other processes are written to a temporary file, synced and renamed into place, so
//! that no reader sees half of one. Only regular files are read ([`open_regular`]): a pipe or a
//! device under a file's name is an error that says what it is. Nothing here knows a file's
//! purpose.

mod cache;
mod error;
mod home;
mod lock;
mod own;
mod regular;
mod reuse;
mod space;
mod staging;
mod whole;

pub use cache::cache_folder;
pub use error::{FileError, system_message};
pub use home::{NoHome, expand_home};
pub use lock::Lock;
pub use own::make_own_folder;
pub use regular::{
    append_limited, append_regular, name_of, no_memory, open_regular, read_regular, read_text, require, reserve,
};
pub use reuse::reuse;
pub use space::Space;
pub use staging::Staging;
pub use whole::{folder_of, remove_own_temporaries, remove_temporaries, write_unsynced, write_whole};
