//! The right to write to a run folder.
//!
//! Two things hold this right. A lock, which the kernel drops with its holder, separates processes that know nothing of
//! each other. And the *claim* is a folder in the run folder, in which every file is written before it is renamed into
//! place. A process that removes another's claim therefore prevents every later write of that process, wherever it is
//! and whenever it wakes up: its renames find nothing to rename. A later start of a job does this to an earlier start,
//! and replaces its lock.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use enmasse_files::{FileError, Staging};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::RunError;
use crate::Attempt;

/// Prefix of claims' names: `.attempt-JOB-REQUEUES-RESTARTS-PROCESS`.
const PREFIX: &str = ".attempt-";

/// Prefix of the names of claims that are being removed.
const FENCED: &str = ".fenced-";

/// The error of a write that finds its claim removed.
const REMOVAL: &str = "a later start of the job has taken over the run, so this one may no longer write to it";

/// Number of attempts to remove a claim into which a writer keeps putting files.
const TRIES: usize = 100;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Claim {
    staging: Staging,
    /// Whether the claim is kept when it ends, because later starts of its job find the run by it.
    is_named: bool,
    _lock: File,
}

impl Claim {
    /// Locks a folder, or takes it over from an earlier start of the same job.
    pub(super) fn lock(root: &Path, attempt: &Attempt) -> Result<File, RunError> {
        loop {
            let path = root.join(".lock");
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
            let file = file.map_err(FileError::of("write to", root))?;
            let held = match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => false,
                Err(Errno::WOULDBLOCK) => true,
                // Lustre without its flock option: no process can lock there, but training should still work.
                Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK) => {
                    refuse_if_superseded(root, attempt)?;
                    return Ok(file);
                }
                Err(error) => return Err(FileError::of("lock", &path)(error.into()).into()),
            };
            if held {
                refuse_if_superseded(root, attempt)?;
                if !claims(root)?.iter().any(|(_, other)| other.is_before(attempt)) {
                    return Err(RunError::Busy(root.to_owned()));
                }
                return replace(&path);
            }
            // A later start may have replaced the file in the meantime.
            let same = |there: std::fs::Metadata| file.metadata().is_ok_and(|own| own.ino() == there.ino());
            if std::fs::metadata(&path).is_ok_and(same) {
                return Ok(file);
            }
        }
    }

    /// Creates the claim, and ends all others.
    pub(super) fn take(root: &Path, attempt: &Attempt, lock: File) -> Result<Self, RunError> {
        let own = root.join(name(attempt));
        std::fs::create_dir(&own).map_err(FileError::of("create", &own))?;
        for entry in entries(root)? {
            if entry != own && starts_with(&entry, PREFIX) {
                fence(root, &entry)?;
            } else if starts_with(&entry, FENCED) {
                remove(&entry)?;
            }
        }
        Ok(Claim { staging: Staging::new(own, REMOVAL), is_named: !attempt.job.is_empty(), _lock: lock })
    }

    /// Where files are written before they are renamed.
    pub(super) fn staging(&self) -> &Staging {
        &self.staging
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.is_named {
            // Already gone if another start has taken over the run.
            let _ = std::fs::remove_dir(self.staging.folder());
        }
    }
}

/// Whether the last claim of the run folder is from a start of this job.
pub(super) fn is_of_job(root: &Path, job: &str) -> Result<bool, RunError> {
    Ok(claims(root)?.iter().any(|(_, attempt)| attempt.job == file_name(job)))
}

/// Whether a path is the claim of this process.
pub(super) fn is_of_this_process(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let process = name.strip_prefix(PREFIX).and_then(|name| name.rsplit('-').next()?.split('.').next());
    process == Some(&std::process::id().to_string())
}

/// An attempt whose job has the name used in its claims.
pub(super) fn as_named(attempt: &Attempt) -> Attempt {
    Attempt { job: file_name(&attempt.job), ..attempt.clone() }
}

/// Replaces a lock file that another process holds by a new one.
fn replace(path: &Path) -> Result<File, RunError> {
    let own = path.with_file_name(format!(".lock-{}", unique()));
    let make = || {
        let file = OpenOptions::new().write(true).create_new(true).open(&own)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        std::fs::rename(&own, path)?;
        Ok(file)
    };
    make().map_err(|error| FileError::of("replace", path)(error).into())
}

fn refuse_if_superseded(root: &Path, attempt: &Attempt) -> Result<(), RunError> {
    match claims(root)?.into_iter().find(|(_, other)| attempt.is_before(other)) {
        Some((_, by)) => Err(RunError::Superseded { path: root.to_owned(), own: attempt.clone(), by }),
        None => Ok(()),
    }
}

/// Prevents every later write of the claim's owner.
fn fence(root: &Path, claim: &Path) -> Result<(), RunError> {
    // This takes effect at once for a process that finds the folder by name. For a client of a network file system that
    // has a handle of the folder, it takes effect once the folder is empty and removed.
    let fenced = root.join(format!("{FENCED}{}", unique()));
    match std::fs::rename(claim, &fenced) {
        Ok(()) => remove(&fenced),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(FileError::of("rename", claim)(error).into()),
    }
}

fn remove(folder: &Path) -> Result<(), RunError> {
    let mut last = Ok(());
    for _ in 0..TRIES {
        match std::fs::remove_dir_all(folder) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => last = Err(FileError::of("remove", folder)(error).into()),
        }
    }
    last
}

/// The claims in a run folder, which need not exist.
fn claims(root: &Path) -> Result<Vec<(PathBuf, Attempt)>, RunError> {
    let named = |path: PathBuf| {
        let name = path.file_name()?.to_str()?.strip_prefix(PREFIX)?.to_owned();
        let mut parts = name.rsplitn(4, '-').skip(1);
        let (restarts, requeues) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let job = parts.next()?.to_owned();
        Some((path, Attempt { job, requeues, restarts }))
    };
    Ok(entries(root)?.into_iter().filter_map(named).collect())
}

/// What a folder holds; nothing where there is none.
pub(super) fn entries(root: &Path) -> Result<Vec<PathBuf>, RunError> {
    let read = FileError::of("read", root);
    let entries = match std::fs::read_dir(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(read(error).into()),
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>();
    Ok(paths.map_err(read)?)
}

fn starts_with(path: &Path, prefix: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
}

fn name(attempt: &Attempt) -> String {
    let Attempt { job, requeues, restarts } = attempt;
    format!("{PREFIX}{job}-{requeues}-{restarts}-{}", unique())
}

/// A job's name in a form that can be part of a file name.
fn file_name(job: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    job.chars().take(100).map(plain).collect()
}

/// A name that no other claim has. Otherwise another process could restore a removed claim.
fn unique() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}.{}", std::process::id(), now.as_nanos())
}
