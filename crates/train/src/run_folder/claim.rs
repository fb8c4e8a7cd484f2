//! The right to write to a run folder.
//!
//! Two things hold it. A lock, which the kernel drops with its holder, keeps processes apart that know nothing of each other.
//! And the *claim*, a folder in the run folder: whatever is written takes shape there and is renamed into place, so that
//! who removes the claim of another has taken every later write from it, wherever that process is and whenever it wakes up:
//! its renames find nothing to rename. A later start of a job does that to an earlier one, whose lock it replaces.

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

/// How names of claims begin: `.attempt-JOB-REQUEUES-RESTARTS-PROCESS`.
const PREFIX: &str = ".attempt-";

/// Of what is being taken away from a claim.
const FENCED: &str = ".fenced-";

/// What a write says that finds its claim removed.
const REMOVAL: &str = "a later start of the job has taken the run over, so this one may write to it no more";

/// So often a writer may put something into a claim while it is being removed.
const TRIES: usize = 100;

/// See the module.
#[derive(Debug)]
pub(super) struct Claim {
    staging: Staging,
    /// Kept when it ends: later starts of its job find the run by it.
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
                // Lustre without its flock option: nobody can lock there, and training is still wanted.
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
            // A later start may have put another file in its place meanwhile.
            let same = |there: std::fs::Metadata| file.metadata().is_ok_and(|own| own.ino() == there.ino());
            if std::fs::metadata(&path).is_ok_and(same) {
                return Ok(file);
            }
        }
    }

    /// Makes the claim, and ends all others.
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

    /// Where files take shape.
    pub(super) fn staging(&self) -> &Staging {
        &self.staging
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.is_named {
            // Gone already where another start has taken the run over.
            let _ = std::fs::remove_dir(self.staging.folder());
        }
    }
}

/// Whether a start of this job has claimed the run folder last.
pub(super) fn is_of_job(root: &Path, job: &str) -> Result<bool, RunError> {
    Ok(claims(root)?.iter().any(|(_, attempt)| attempt.job == file_name(job)))
}

/// An attempt whose job has the name that its claims have.
pub(super) fn as_named(attempt: &Attempt) -> Attempt {
    Attempt { job: file_name(&attempt.job), ..attempt.clone() }
}

/// A new lock file in the place of one that somebody holds.
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

/// Takes every later write from the claim's maker.
fn fence(root: &Path, claim: &Path) -> Result<(), RunError> {
    // At once for a process that goes by its name; for a client of a network file system that knows the folder itself, once it is
    // empty and gone.
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

fn entries(root: &Path) -> Result<Vec<PathBuf>, RunError> {
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

/// A job's name as a part of a file's.
fn file_name(job: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    job.chars().take(100).map(plain).collect()
}

/// No two claims have one name, or a removed one could come back by another's hand.
fn unique() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}.{}", std::process::id(), now.as_nanos())
}
