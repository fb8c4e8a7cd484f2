//! Files that appear whole or not at all: written aside, synced, then renamed into place.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, OFlags, linkat};
use thiserror::Error;

/// A file or folder that could not be read or written.
#[derive(Debug, Error)]
#[error("cannot {action} {}: {}", path.display(), self.reason())]
pub struct FileError {
    /// `read`, `write`, `create`, …
    pub action: &'static str,
    /// What it was done to.
    pub path: PathBuf,
    /// The kernel's answer.
    pub source: io::Error,
}

impl FileError {
    /// For `map_err`.
    pub(crate) fn of<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> FileError + 'a {
        move |source| FileError { action, path: path.to_owned(), source }
    }

    fn reason(&self) -> String {
        match self.source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                "the disk is full; free some space, or choose another folder with --out".to_owned()
            }
            ErrorKind::NotFound => "it does not exist".to_owned(),
            ErrorKind::CrossesDevices => "a run folder must be on one file system".to_owned(),
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => format!("no permission ({})", self.source),
            _ => self.source.to_string(),
        }
    }
}

/// How the names of temporary files begin and end; [`remove_temporaries`] goes by it.
const TEMPORARY: (&str, &str) = (".enmasse-", ".tmp");

/// Writes a file through `fill` so that `path` holds either what it held before or all of the new content, whatever
/// happens in between. Needs write permission for the folder.
pub fn write_whole(path: &Path, fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>) -> Result<(), FileError> {
    write_by(parent(path), path, fill)
}

/// A folder in which the files of one writer take shape, on the file system that they are for. Once it is removed, that writer
/// can write no more.
#[derive(Clone, Debug)]
pub(crate) struct Staging(PathBuf);

impl Staging {
    /// A folder that exists.
    pub(crate) fn new(folder: PathBuf) -> Self {
        Staging(folder)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }

    /// As [`write_whole`].
    pub(crate) fn write_whole(
        &self,
        path: &Path,
        fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
    ) -> Result<(), FileError> {
        write_by(&self.0, path, fill).map_err(|error| self.check(path).err().unwrap_or(error))
    }

    /// An error once the folder is removed, for what is written otherwise.
    pub(crate) fn check(&self, path: &Path) -> Result<(), FileError> {
        match std::fs::symlink_metadata(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let reason = "a later start of the job has taken the run over, so this one may write to it no more";
                Err(FileError::of("write", path)(io::Error::other(reason)))
            }
            _ => Ok(()),
        }
    }
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Writes a file that takes shape in `folder`.
fn write_by(
    folder: &Path,
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> Result<(), FileError> {
    let attempt = || {
        let temporary = Temporary::create(folder)?;
        let mut writer = BufWriter::with_capacity(1 << 20, &temporary.file);
        fill(&mut writer)?;
        writer.flush()?;
        drop(writer);
        temporary.file.sync_all()?;
        temporary.rename(path)?;
        // The rename itself survives a power cut only once the folder is on disk.
        File::open(parent(path))?.sync_all()
    };
    attempt().map_err(FileError::of("write", path))
}

/// A file under construction. Dropped before it is renamed, it leaves nothing.
struct Temporary {
    file: File,
    /// Its name while it has one.
    name: PathBuf,
    named: bool,
}

impl Temporary {
    /// Without a name where the file system can do that, so that even a killed process leaves nothing behind.
    fn create(folder: &Path) -> io::Result<Self> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let mut name = OsString::from(TEMPORARY.0);
        name.push(format!("{}-{count}{}", std::process::id(), TEMPORARY.1));
        let name = folder.join(name);
        let unnamed = OpenOptions::new().write(true).custom_flags(OFlags::TMPFILE.bits() as i32).open(folder);
        match unnamed {
            Ok(file) => Ok(Temporary { file, name, named: false }),
            // Which error says that the file system cannot depends on the file system; a named file meets the others again.
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
            // On the way out of an error already; what stays is removed when the folder is next opened.
            let _ = std::fs::remove_file(&self.name);
        }
    }
}

/// Removes temporary files that killed processes left in a folder that nobody else writes to.
pub(crate) fn remove_temporaries(folder: &Path) -> Result<(), FileError> {
    for entry in std::fs::read_dir(folder).map_err(FileError::of("read", folder))? {
        let entry = entry.map_err(FileError::of("read", folder))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(TEMPORARY.0) && name.ends_with(TEMPORARY.1) {
            std::fs::remove_file(entry.path()).map_err(FileError::of("remove", &entry.path()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
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
        let full = "the disk is full; free some space, or choose another folder with --out";
        assert_eq!(failed.unwrap_err().to_string(), format!("cannot write {}: {full}", path.display()));
        assert_eq!(
            (std::fs::read(&path).unwrap().as_slice(), names(folder.path())),
            (&b"two"[..], vec!["a".to_owned()])
        );
        let nowhere = Path::new("/nowhere/a");
        let error = write_whole(nowhere, |_| Ok(())).unwrap_err().to_string();
        assert_eq!(error, "cannot write /nowhere/a: it does not exist");
    }

    /// A target that cannot be replaced fails after the temporary got its name, which must not stay.
    #[test]
    fn failed_rename_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::create_dir(&path).unwrap();
        write_whole(&path, |writer| writer.write_all(b"one")).unwrap_err();
        assert_eq!(names(folder.path()), ["a"]);
    }

    #[test]
    fn temporaries_of_the_killed_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        for name in [".enmasse-7-0.tmp", ".enmasse-7-0", "x.tmp"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        remove_temporaries(folder.path()).unwrap();
        assert_eq!(names(folder.path()), [".enmasse-7-0", "x.tmp"]);
    }
}
