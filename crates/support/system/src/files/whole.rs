//! Writes a file to a temporary one, syncs it, then renames it into place.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, OFlags, linkat};

use crate::files::{FileError, require};

/// Bytes that are written at a time.
const BUFFER: usize = 1 << 20;

/// Prefix and suffix of temporary files' names, by which [`remove_temporaries`] finds them.
const TEMPORARY: (&str, &str) = (".enmasse-", ".tmp");

/// Writes a file through `fill` such that `path` holds either its previous content or all of the new content, whatever
/// happens in between.
///
/// # Errors
/// That of `fill`, or the file cannot be written, which needs write permission for the folder.
pub fn write_whole(path: &Path, fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>) -> Result<(), FileError> {
    write_by(folder_of(path), path, fill)
}

/// [`write_whole`] without a wait for the disk. After a power cut the file may be there with any content, so it is for files whose
/// readers can tell.
///
/// # Errors
/// Those of [`write_whole`].
pub fn write_unsynced(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> Result<(), FileError> {
    let attempt = || fill_temporary(folder_of(path), fill)?.rename(path);
    attempt().map_err(FileError::of("write", path))
}

/// The folder that a file is in, `.` for a bare name.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Like [`write_whole`], for a file that is prepared in `folder`.
pub(crate) fn write_by(
    folder: &Path,
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> Result<(), FileError> {
    let attempt = || {
        let temporary = fill_temporary(folder, fill)?;
        temporary.file.sync_all()?;
        temporary.rename(path)?;
        // The rename itself survives a power cut only once the folder is on disk.
        File::open(folder_of(path))?.sync_all()
    };
    attempt().map_err(FileError::of("write", path))
}

fn fill_temporary(folder: &Path, fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>) -> io::Result<Temporary> {
    let temporary = Temporary::create(folder)?;
    require(BUFFER)?;
    let mut writer = BufWriter::with_capacity(BUFFER, &temporary.file);
    fill(&mut writer)?;
    writer.flush()?;
    drop(writer);
    Ok(temporary)
}

/// A file being written. Dropped before it is renamed, it leaves nothing.
struct Temporary {
    file: File,
    /// Its name, if it has one.
    name: PathBuf,
    named: bool,
}

impl Temporary {
    /// Without a name if the file system supports that, so that even a killed process leaves nothing behind.
    fn create(folder: &Path) -> io::Result<Self> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = folder.join(format!("{}{count}{}", own_prefix(), TEMPORARY.1));
        let unnamed = OpenOptions::new().write(true).custom_flags(OFlags::TMPFILE.bits() as i32).open(folder);
        match unnamed {
            Ok(file) => Ok(Temporary { file, name, named: false }),
            // The error that means "unsupported" depends on the file system; any other error occurs again with a named
            // file.
            Err(_) => {
                let file = OpenOptions::new().write(true).create_new(true).open(&name)?;
                Ok(Temporary { file, name, named: true })
            }
        }
    }

    fn rename(mut self, path: &Path) -> io::Result<()> {
        if !self.named {
            let descriptor = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            linkat(CWD, descriptor, CWD, &self.name, AtFlags::SYMLINK_FOLLOW)?;
            self.named = true;
        }
        std::fs::rename(&self.name, path)?;
        self.named = false;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if self.named {
            // An error is being returned already; a remaining file is removed when the folder is next opened.
            let _ = std::fs::remove_file(&self.name);
        }
    }
}

/// Removes temporary files that killed processes left, in a folder without another writer.
///
/// # Errors
/// The folder cannot be read, or a file not be removed.
pub fn remove_temporaries(folder: &Path) -> Result<(), FileError> {
    remove(folder, TEMPORARY.0)
}

/// Removes the temporary files of this process, which is about to end while it may be writing.
///
/// # Errors
/// The folder cannot be read, or a file not be removed.
pub fn remove_own_temporaries(folder: &Path) -> Result<(), FileError> {
    remove(folder, &own_prefix())
}

fn own_prefix() -> String {
    format!("{}{}-", TEMPORARY.0, std::process::id())
}

fn remove(folder: &Path, prefix: &str) -> Result<(), FileError> {
    for entry in std::fs::read_dir(folder).map_err(FileError::of("read", folder))? {
        let entry = entry.map_err(FileError::of("read", folder))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(prefix) && name.ends_with(TEMPORARY.1) {
            std::fs::remove_file(entry.path()).map_err(FileError::of("remove", &entry.path()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        write_whole(&path, |writer| writer.write_all(b"one")).unwrap();
        write_whole(&path, |writer| writer.write_all(b"two")).unwrap();
        let failed = write_whole(&path, |writer| {
            writer.write_all(&[0; 3 << 20])?;
            Err(ErrorKind::StorageFull.into())
        });
        let full = "the disk is full; free some space, or choose another folder";
        assert_eq!(failed.unwrap_err().to_string(), format!("cannot write {}: {full}", path.display()));
        assert_eq!(
            (std::fs::read(&path).unwrap().as_slice(), names(folder.path())),
            (&b"two"[..], vec!["a".to_owned()])
        );
        let nowhere = Path::new("/nowhere/a");
        let error = write_whole(nowhere, |_| Ok(())).unwrap_err().to_string();
        assert_eq!(error, "cannot write /nowhere/a: there is no folder /nowhere");
    }

    /// A target that cannot be replaced fails after the temporary file got its name, which must not remain.
    #[test]
    fn failed_rename_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::create_dir(&path).unwrap();
        write_whole(&path, |writer| writer.write_all(b"one")).unwrap_err();
        assert_eq!(names(folder.path()), ["a"]);
    }

    #[test]
    fn temporaries_of_killed_processes_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        for name in [".enmasse-7-0.tmp", ".enmasse-7-0", "x.tmp"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        remove_temporaries(folder.path()).unwrap();
        assert_eq!(names(folder.path()), [".enmasse-7-0", "x.tmp"]);
        // Those of this process alone.
        let own = format!(".enmasse-{}-0.tmp", std::process::id());
        let others = [".enmasse-0-0.tmp", ".enmasse-7-0", "x.tmp"];
        for name in [&own, others[0]] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        remove_own_temporaries(folder.path()).unwrap();
        assert_eq!(names(folder.path()), others);
    }
}
