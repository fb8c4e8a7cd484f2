//! The hidden folder in which a set is prepared, beside the place where it will appear.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use enmasse_system::files::{FileError, Lock, Space, make_own_folder};
use rustix::fs::syncfs;

use crate::fetch::{Archive, FetchError, KnownSet};

/// Where one process fetches one set.
pub(crate) struct FetchLocation {
    folder: PathBuf,
    _lock: Lock,
}

impl FetchLocation {
    /// Makes the folder, or takes over that of a process that has ended.
    pub fn claim(parent: &Path, set: &KnownSet) -> Result<Self, FetchError> {
        let folder = parent.join(format!(".enmasse-fetch-{}", set.name));
        make_own_folder(&folder)?;
        let lock = Lock::take(&folder.join("lock")).map_err(FileError::of("write", &folder))?;
        let lock = lock.ok_or_else(|| FetchError::Busy(parent.display().to_string()))?;
        Ok(FetchLocation { folder, _lock: lock })
    }

    /// The file for an archive's bytes.
    pub fn part(&self, archive: &Archive) -> PathBuf {
        self.folder.join(archive.name)
    }

    /// Fails unless there is space for what is not there yet, and for the extracted files.
    pub fn require_space(&self, set: &KnownSet) -> Result<(), FetchError> {
        let there = |archive: &Archive| fs::metadata(self.part(archive)).map_or(0, |metadata| metadata.len());
        let needed = set.archives.iter();
        let needed: u64 = needed.map(|archive| archive.bytes.saturating_sub(there(archive)) + archive.unpacked).sum();
        let free = Space::of(&self.folder).map_err(FileError::of("read", &self.folder))?.bytes;
        if free >= needed {
            return Ok(());
        }
        let folder = self.folder.parent().unwrap_or(&self.folder).display().to_string();
        Err(FetchError::Space { folder, needed: needed.div_ceil(1_000_000), free: free / 1_000_000 })
    }

    /// An empty folder for the extracted files.
    pub fn empty_staging(&self) -> Result<PathBuf, FileError> {
        let staging = self.folder.join("extracted");
        match fs::remove_dir_all(&staging) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(FileError::of("remove", &staging)(error));
            }
            _ => fs::create_dir(&staging).map_err(FileError::of("create", &staging))?,
        }
        Ok(staging)
    }

    /// Gives the extracted folder its name, once its files are on the disk.
    pub fn publish(&self, extracted: &Path, target: &Path) -> Result<(), FileError> {
        let on_disk = File::open(&self.folder).and_then(|folder| Ok(syncfs(folder)?));
        on_disk.map_err(FileError::of("write", target))?;
        fs::rename(extracted, target).map_err(FileError::of("write", target))
    }

    /// Removes the folder and all that is in it.
    pub fn remove(self) -> Result<(), FileError> {
        fs::remove_dir_all(&self.folder).map_err(FileError::of("remove", &self.folder))
    }
}
