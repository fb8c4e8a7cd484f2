//! A folder whose existence grants the right to write.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind};
use std::path::{Path, PathBuf};

use crate::FileError;
use crate::whole::write_by;

/// A folder in which one writer prepares its files, on the file system of their destination. Once the folder is
/// removed, the writer can write no more.
#[derive(Clone, Debug)]
pub struct Staging {
    folder: PathBuf,
    /// The meaning of its removal.
    removal: &'static str,
}

impl Staging {
    /// An existing folder. Once it is removed, errors give `removal` as the reason.
    pub fn new(folder: PathBuf, removal: &'static str) -> Self {
        Staging { folder, removal }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Like [`write_whole`](crate::write_whole).
    pub fn write_whole(
        &self,
        path: &Path,
        fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
    ) -> Result<(), FileError> {
        write_by(&self.folder, path, fill).map_err(|error| self.check(path).err().unwrap_or(error))
    }

    /// An error once the folder is removed; `path` is the file that was to be written. A removed parent has no meaning:
    /// somebody deleted everything.
    pub fn check(&self, path: &Path) -> Result<(), FileError> {
        let is_gone =
            |folder: &Path| std::fs::symlink_metadata(folder).is_err_and(|error| error.kind() == ErrorKind::NotFound);
        if !is_gone(&self.folder) {
            return Ok(());
        }
        let reason = match self.folder.parent() {
            Some(parent) if is_gone(parent) => format!("the folder {} was deleted meanwhile", parent.display()),
            _ => self.removal.to_owned(),
        };
        Err(FileError::of("write", path)(io::Error::other(reason)))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_writer_whose_folder_is_removed_writes_no_more() {
        let place = tempfile::tempdir().unwrap();
        let (folder, path) = (place.path().join("own"), place.path().join("a"));
        std::fs::create_dir(&folder).unwrap();
        let staging = Staging::new(folder.clone(), "another writer has taken over");
        let write = |bytes: &[u8]| staging.write_whole(&path, |file| file.write_all(bytes));
        write(b"one").unwrap();
        staging.check(&path).unwrap();
        std::fs::remove_dir(&folder).unwrap();
        let expected = format!("cannot write {}: another writer has taken over", path.display());
        for refused in [write(b"two"), staging.check(&path)] {
            assert_eq!(refused.unwrap_err().to_string(), expected);
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
    }

    /// A deleted run folder was told as another writer's doing.
    #[test]
    fn a_deleted_parent_is_told_as_such() {
        let place = tempfile::tempdir().unwrap();
        let (parent, folder) = (place.path().join("run"), place.path().join("run/own"));
        std::fs::create_dir_all(&folder).unwrap();
        let staging = Staging::new(folder, "another writer has taken over");
        std::fs::remove_dir_all(&parent).unwrap();
        let path = parent.join("a");
        let expected =
            format!("cannot write {}: the folder {} was deleted meanwhile", path.display(), parent.display());
        for refused in [staging.write_whole(&path, |file| file.write_all(b"two")), staging.check(&path)] {
            assert_eq!(refused.unwrap_err().to_string(), expected);
        }
    }
}
