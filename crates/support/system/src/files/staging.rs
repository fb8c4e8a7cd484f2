//! A folder whose existence grants the right to write.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind};
use std::path::{Path, PathBuf};

use crate::files::FileError;
use crate::files::whole::{folder_of, write_by};

/// The name of a link before it has its own.
const LINK: &str = "link";

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

    /// Like [`write_whole`](crate::files::write_whole).
    ///
    /// # Errors
    /// Those of [`write_whole`](crate::files::write_whole), or what [`check`](Self::check) says once the folder is
    /// removed.
    pub fn write_whole(
        &self,
        path: &Path,
        fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
    ) -> Result<(), FileError> {
        write_by(&self.folder, path, fill).map_err(|error| self.check(path).err().unwrap_or(error))
    }

    /// Gives the file at `from` the further name `path`, in place of a file that has it, whole or not at all. File systems without
    /// such links get a copy.
    ///
    /// # Errors
    /// Neither a link nor a copy can be made, or the folder is removed ([`check`](Self::check)).
    pub fn write_link(&self, from: &Path, path: &Path) -> Result<(), FileError> {
        let link = self.folder.join(LINK);
        let attempt = || -> io::Result<()> {
            remove_if_there(&link)?;
            if std::fs::hard_link(from, &link).is_err() {
                std::fs::copy(from, &link)?;
                File::open(&link)?.sync_all()?;
            }
            std::fs::rename(&link, path)?;
            // A rename to another name of the same file does nothing.
            remove_if_there(&link)?;
            File::open(folder_of(path))?.sync_all()
        };
        let written = attempt().map_err(FileError::of("write", path));
        written.map_err(|error| self.check(path).err().unwrap_or(error))
    }

    /// Checks that the folder is still there; `path` is the file that was to be written.
    ///
    /// # Errors
    /// The folder has been removed. A removed parent has no meaning: somebody deleted everything.
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

fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
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

    #[test]
    fn links_replace_files_and_outlive_their_origin() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        let own = path("own");
        std::fs::create_dir(&own).unwrap();
        std::fs::write(path("a"), "a").unwrap();
        std::fs::write(path("b"), "b").unwrap();
        let staging = Staging::new(own.clone(), "another writer has taken over");
        let content = |name: &str| std::fs::read_to_string(path(name)).unwrap();
        for _ in 0..2 {
            staging.write_link(&path("a"), &path("b")).unwrap();
            assert_eq!((content("a"), content("b")), ("a".to_owned(), "a".to_owned()));
        }
        // A new file under one of the names leaves the other.
        staging.write_whole(&path("a"), |file| file.write_all(b"new")).unwrap();
        assert_eq!((content("a"), content("b")), ("new".to_owned(), "a".to_owned()));
        assert!(staging.write_link(&path("none"), &path("b")).unwrap_err().to_string().contains("cannot write"));
        assert_eq!(std::fs::read_dir(&own).unwrap().count(), 0);
        std::fs::remove_dir(&own).unwrap();
        let refused = staging.write_link(&path("a"), &path("b")).unwrap_err().to_string();
        assert!(refused.ends_with("another writer has taken over"), "{refused}");
        assert_eq!(content("b"), "a");
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
