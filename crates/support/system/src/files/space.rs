//! The room that is left on a file system.

use std::io;
use std::path::Path;

use rustix::fs::statvfs;

/// What may still be written to the file system of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes that a user without privileges may write.
    pub bytes: u64,
    /// Files that such a user may create; `None` on a file system that does not count them.
    pub files: Option<u64>,
    /// Bytes of a block: a file takes a whole number of them.
    pub block: u64,
}

impl Space {
    /// Asks the file system of `folder`.
    ///
    /// # Errors
    /// There is no such folder, or its file system does not answer.
    pub fn of(folder: &Path) -> io::Result<Self> {
        let found = statvfs(folder)?;
        let block = found.f_frsize.max(1);
        let files = (found.f_files > 0).then_some(found.f_favail);
        Ok(Space { bytes: found.f_bavail.saturating_mul(block), files, block })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_some() {
        let folder = tempfile::tempdir().unwrap();
        let space = Space::of(folder.path()).unwrap();
        assert!(space.bytes > 0 && space.block.is_power_of_two(), "{space:?}");
        assert!(Space::of(&folder.path().join("none")).is_err());
    }
}
