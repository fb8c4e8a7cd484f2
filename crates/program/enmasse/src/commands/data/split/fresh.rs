//! A folder of links or copies that appears whole or not at all.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use enmasse_system::files::make_own_folder;
use rustix::fs::{CWD, RenameFlags, renameat_with, syncfs};

use super::parts::{SplitImage, SplitPart};
use crate::failure::{Failure, failed, usage};

/// How an image comes into the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Another name of the same file.
    Hard,
    /// A link to the file's full path.
    Symbolic,
    Copy,
}

impl Link {
    pub const ALL: [Link; 3] = [Link::Hard, Link::Symbolic, Link::Copy];

    /// Its value of `--link`.
    pub const fn word(self) -> &'static str {
        match self {
            Link::Hard => "hard",
            Link::Symbolic => "symbolic",
            Link::Copy => "copy",
        }
    }
}

/// A folder in the making, beside its place. It is removed on drop, and by the next start for the same place if this process
/// is killed.
pub struct Fresh {
    place: PathBuf,
    temporary: PathBuf,
    /// Held while this process writes.
    lock: File,
}

impl Fresh {
    /// Begins a folder that is to appear at `place`.
    pub fn begin(place: &Path) -> Result<Self, Failure> {
        let failed = |path: &Path, error: std::io::Error| failed!("cannot create {}: {error}", path.display());
        let name = place.file_name().ok_or_else(|| usage!("{}: is no new folder", place.display()))?;
        let temporary = place.with_file_name(format!(".{}.enmasse.tmp", name.to_string_lossy()));
        match fs::create_dir(&temporary) {
            // What it has under the names of the parts goes, so it must be this user's, and no link to other folders.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                make_own_folder(&temporary).map_err(Failure::error)?;
            }
            made => made.map_err(|error| failed(&temporary, error))?,
        }
        let lock = File::open(&temporary).map_err(|error| failed(&temporary, error))?;
        if let Err(TryLockError::WouldBlock) = lock.try_lock() {
            return Err(failed!("{}: another process is writing it", place.display()));
        }
        let fresh = Fresh { place: place.to_owned(), temporary, lock };
        // What a killed process has left.
        fresh.clear().map_err(|error| failed(&fresh.temporary, error))?;
        Ok(fresh)
    }

    /// Removes the parts.
    fn clear(&self) -> std::io::Result<()> {
        for part in SplitPart::ALL {
            match fs::remove_dir_all(self.temporary.join(part.word())) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Adds an image.
    pub fn add(&self, entry: &SplitImage, link: Link) -> Result<(), Failure> {
        let folder = self.temporary.join(entry.part.word()).join(&entry.class);
        let add = || {
            fs::create_dir_all(&folder)?;
            let target = folder.join(&entry.name);
            match link {
                Link::Hard => fs::hard_link(&entry.file, target),
                Link::Symbolic => symlink(&entry.file, target),
                Link::Copy => fs::copy(&entry.file, target).map(drop),
            }
        };
        add().map_err(|error| {
            let (file, place) = (entry.file.display(), self.place.display());
            Failure::Error(match error.kind() {
                ErrorKind::CrossesDevices => {
                    format!("{file}: is on another file system than {place}; use --link symbolic or --link copy")
                }
                ErrorKind::PermissionDenied if link == Link::Hard => {
                    format!("{file}: cannot be linked to from {place}: {error}; use --link symbolic or --link copy")
                }
                _ => format!("{file}: cannot be written to {place}: {error}"),
            })
        })
    }

    /// Moves the folder to its place, where nothing may be by now.
    pub fn finish(self) -> Result<(), Failure> {
        let failed = |error: std::io::Error| failed!("cannot create {}: {error}", self.place.display());
        syncfs(&self.lock).map_err(|error| failed(error.into()))?;
        match renameat_with(CWD, &self.temporary, CWD, &self.place, RenameFlags::NOREPLACE) {
            // Some network file systems rename only as rename(2) does, which replaces no folder that holds something.
            Err(rustix::io::Errno::INVAL) => fs::rename(&self.temporary, &self.place).map_err(failed),
            moved => moved.map_err(|error| failed(error.into())),
        }
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        // After a success there is nothing under this name.
        let _ = self.clear().and_then(|()| fs::remove_dir(&self.temporary));
    }
}
