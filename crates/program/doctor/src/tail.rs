//! The end of a file of any length.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use enmasse_system::files::open_regular;

/// The last bytes of a file, as text.
pub fn tail(path: &Path, most: u64) -> Option<String> {
    let mut file = open_regular(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(most))).ok()?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
