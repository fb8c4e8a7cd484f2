//! The files and folders below a path, with what tells whether two of them are the same.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use enmasse_data::DataError;
use enmasse_datasets::{Entered, LINK_ABOVE};
use enmasse_datasets::{LeftOut, is_clutter};
use enmasse_system::files::name_of;

/// What is below a path.
#[derive(Debug, Default)]
pub(super) struct Tree {
    /// By their paths relative to the folder that the tree's top lies in.
    pub entries: BTreeMap<PathBuf, Entry>,
    /// What is neither a file nor a folder.
    pub left_out: LeftOut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Folder,
    File {
        bytes: u64,
        /// Of its content.
        modified: Option<SystemTime>,
    },
}

impl Tree {
    /// Lists `top`, a file or a folder, and all that is below it. Links are followed, except to a folder that they lie in, and
    /// clutter is left out, as when images are listed. `tell` gets the number of entries so far.
    pub fn of(top: &Path, tell: &mut dyn FnMut(usize)) -> Result<Self, DataError> {
        let mut tree = Tree::default();
        let name = top.file_name().map(PathBuf::from).unwrap_or_default();
        let metadata = fs::metadata(top).map_err(|source| DataError::read(top, source))?;
        tree.add(top, name, &metadata, &mut Entered::default(), tell)?;
        Ok(tree)
    }

    fn add(
        &mut self,
        path: &Path,
        relative: PathBuf,
        metadata: &Metadata,
        entered: &mut Entered,
        tell: &mut dyn FnMut(usize),
    ) -> Result<(), DataError> {
        if metadata.is_file() {
            let file = Entry::File { bytes: metadata.len(), modified: metadata.modified().ok() };
            self.entries.insert(relative, file);
            return Ok(());
        }
        if !metadata.is_dir() {
            self.left_out.add(path, name_of(metadata.file_type()));
            return Ok(());
        }
        if !entered.enter(path, metadata)? {
            self.left_out.add(path, LINK_ABOVE);
            return Ok(());
        }
        self.entries.insert(relative.clone(), Entry::Folder);
        let failed = |source| DataError::read(path, source);
        for entry in fs::read_dir(path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let (name, path) = (entry.file_name(), entry.path());
            if is_clutter(&name) {
                continue;
            }
            match fs::metadata(&path) {
                Ok(metadata) => self.add(&path, relative.join(name), &metadata, entered, tell)?,
                Err(_) if path.is_symlink() => self.left_out.add(&path, "a broken link"),
                Err(source) => return Err(DataError::read(path, source)),
            }
        }
        tell(self.entries.len());
        entered.leave();
        Ok(())
    }

    /// The files, with their lengths.
    pub fn files(&self) -> impl Iterator<Item = (&Path, u64)> {
        self.entries.iter().filter_map(|(path, entry)| match entry {
            Entry::Folder => None,
            Entry::File { bytes, .. } => Some((path.as_path(), *bytes)),
        })
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files().map(|(_, bytes)| bytes).sum()
    }

    /// One line for each number, and a hash of all names, lengths and times.
    pub fn describe(&self) -> String {
        let mut hash = blake3::Hasher::new();
        for (path, entry) in &self.entries {
            let name = path.as_os_str().as_bytes();
            hash.update(&(name.len() as u64).to_le_bytes()).update(name);
            match entry {
                Entry::Folder => hash.update(b"folder"),
                Entry::File { bytes, modified } => hash.update(format!("{bytes} {modified:?}").as_bytes()),
            };
        }
        let files = self.files().count();
        let bytes = self.bytes();
        format!("files {files}\nbytes {bytes}\nblake3 {}\n", hash.finalize())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Two links in each of 18 folders lead 262,144 times into the last one, which took 24 seconds.
    #[test]
    fn branching_links_end_a_copy() {
        let root = tempfile::tempdir().unwrap();
        let path = |level: usize| root.path().join(level.to_string());
        (0..=18).for_each(|level| fs::create_dir(path(level)).unwrap());
        for level in 0..18 {
            ["a", "b"].iter().for_each(|name| symlink(path(level + 1), path(level).join(name)).unwrap());
        }
        let mut listed = 0;
        let mut list = |level: usize| {
            listed = 0;
            Tree::of(&path(level), &mut |_| listed += 1).map(|_| listed).map_err(|error| (error.to_string(), listed))
        };
        assert_eq!(list(13), Ok(63));
        let (error, listed) = list(0).unwrap_err();
        assert!(error.contains("links lead into this folder more than 100 times") && listed <= 1800, "{error}");
    }
}
