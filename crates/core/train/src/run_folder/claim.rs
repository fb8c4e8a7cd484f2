//! The right to write to a run folder.
//!
//! Two things hold this right. A lock, which the kernel drops with its holder, separates processes that know nothing of
//! each other. And the *claim* is a folder in the run folder, in which every file is written before it is renamed into
//! place. A process that removes another's claim therefore prevents every later write of that process, wherever it is
//! and whenever it wakes up: its renames find nothing to rename. A later start of a job does this to an earlier start,
//! and replaces its lock. The new lock is such a file too, so of several later starts the last one keeps it.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use enmasse_system::files::{FileError, Staging};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::RunError;
use crate::Attempt;

/// The name of the file that is locked.
const LOCK: &str = ".lock";

/// Prefix of claims' names: `.attempt-JOB-REQUEUES-RESTARTS-PROCESS`.
const PREFIX: &str = ".attempt-";

/// Prefix of the names of claims that are being removed.
const FENCED: &str = ".fenced-";

/// The error of a write that finds its claim removed.
pub(super) const REMOVAL: &str =
    "a later start of the job has taken over the run, so this one may no longer write to it";

/// Number of attempts to remove a claim into which a writer keeps putting files.
const TRIES: usize = 100;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Claim {
    /// Where files are written before they are renamed.
    pub(super) staging: Staging,
    /// Whether the claim is kept when it ends, because later starts of its job find the run by it.
    is_named: bool,
    _lock: File,
}

impl Claim {
    /// Locks a folder. Without a lock the claims decide: an earlier start of the same job holds it and can be superseded,
    /// or the file system has no locks.
    pub(super) fn lock(root: &Path, attempt: &Attempt) -> Result<Option<File>, RunError> {
        loop {
            let path = root.join(LOCK);
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
            let file = file.map_err(FileError::of("write to", root))?;
            let held = match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => false,
                Err(Errno::WOULDBLOCK) => true,
                Err(error) if is_lockless(error) => return Ok(None),
                Err(error) => return Err(FileError::of("lock", &path)(error.into()).into()),
            };
            if held {
                let claims = claims(&entries(root)?);
                refuse_if(root, attempt, &claims, |other| attempt.is_before(other))?;
                return match claims.iter().any(|other| other.is_before(attempt)) {
                    true => Ok(None),
                    false => Err(RunError::Busy(root.to_owned())),
                };
            }
            // A later start may have replaced the file in the meantime.
            let same = |there: std::fs::Metadata| file.metadata().is_ok_and(|own| own.ino() == there.ino());
            if std::fs::metadata(&path).is_ok_and(same) {
                return Ok(Some(file));
            }
        }
    }

    /// Creates the claim, and ends all others. Refuses a start of a job that later ones have superseded.
    pub(super) fn take(root: &Path, attempt: &Attempt, lock: Option<File>) -> Result<Self, RunError> {
        let own = root.join(name(attempt));
        std::fs::create_dir(&own).map_err(FileError::of("create", &own))?;
        let staging = Staging::new(own, REMOVAL);
        let lock = end_others(root, attempt, &staging, lock).inspect_err(|_| {
            // A later start may have removed it; the first error is the one to report.
            let _ = std::fs::remove_dir_all(staging.folder());
        })?;
        Ok(Claim { staging, is_named: !attempt.job.is_empty(), _lock: lock })
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
    Ok(claims(&entries(root)?).iter().any(|attempt| attempt.job == file_name(job)))
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

/// Ends all other claims, and replaces the lock where an earlier start holds it.
fn end_others(root: &Path, attempt: &Attempt, claim: &Staging, lock: Option<File>) -> Result<File, RunError> {
    // Read after the own claim was created: of two starts that do this at once, at least one sees the other's.
    let entries = entries(root)?;
    let is_locked = lock.is_some();
    refuse_if(root, attempt, &claims(&entries), |other| match is_locked {
        // A scheduler never goes back. But the user may launch a job's command once more, where its last launch has
        // counted restarts, and the lock shows that no process of that launch is left.
        true => attempt.is_before(other) && attempt.requeues < other.requeues,
        false => attempt.is_before(other),
    })?;
    for entry in entries {
        if entry != claim.folder() && starts_with(&entry, PREFIX) {
            fence(root, &entry)?;
        } else if starts_with(&entry, FENCED) {
            remove(&entry)?;
        }
    }
    lock.map_or_else(|| replace_lock(root, claim), Ok)
}

/// Replaces a lock file that another process holds by a new one. Once a later start has removed the claim, this fails.
pub(super) fn replace_lock(root: &Path, claim: &Staging) -> Result<File, RunError> {
    let path = root.join(LOCK);
    let new = claim.folder().join(LOCK);
    let make = || {
        let file = OpenOptions::new().write(true).create_new(true).open(&new)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(error) if !is_lockless(error) => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
        std::fs::rename(&new, &path)?;
        Ok(file)
    };
    make().map_err(|error| match claim.check(&path) {
        Ok(()) => FileError::of("replace", &path)(error).into(),
        Err(removed) => removed.into(),
    })
}

/// Whether the file system has no locks, as Lustre without its flock option. Training should still work there.
fn is_lockless(error: Errno) -> bool {
    matches!(error, Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK)
}

/// Refuses a start of a job if another, whose claim is there, supersedes it.
fn refuse_if(
    root: &Path,
    attempt: &Attempt,
    claims: &[Attempt],
    supersedes: impl Fn(&Attempt) -> bool,
) -> Result<(), RunError> {
    match claims.iter().find(|other| supersedes(other)) {
        Some(by) => Err(RunError::Superseded { path: root.to_owned(), own: attempt.clone(), by: by.clone() }),
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

/// The starts whose claims are among the entries of a run folder.
fn claims(entries: &[PathBuf]) -> Vec<Attempt> {
    let named = |path: &PathBuf| {
        let name = path.file_name()?.to_str()?.strip_prefix(PREFIX)?.to_owned();
        let mut parts = name.rsplitn(4, '-').skip(1);
        let restarts = parts.next()?.parse().ok()?;
        let requeues = parts.next()?.parse().ok()?;
        let job = parts.next()?.to_owned();
        Some(Attempt { job, requeues, restarts })
    };
    entries.iter().filter_map(named).collect()
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

/// Whether a path has the name of a claim.
pub(super) fn is_claim(path: &Path) -> bool {
    starts_with(path, PREFIX)
}

/// A name for a further claim of the same attempt, with this end.
pub(super) fn name_beside(claim: &OsStr, suffix: &str) -> String {
    let claim = claim.to_string_lossy();
    let attempt = claim.rsplit_once('-').map_or(&*claim, |(attempt, _)| attempt);
    format!("{attempt}-{}{suffix}", unique())
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
