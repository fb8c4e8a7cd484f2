//! The right to replace the last checkpoint, of ranks that are left after another one has died. They take turns.
//!
//! The owner of the run folder may be the rank that is gone, so this right is another one: a lock on `config.toml`, which every run
//! has from its first step to its last. The kernel drops it with its holder. The holder writes by a claim of its own, which a
//! later start of the job removes like the owner's.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use enmasse_system::files::{FileError, Staging};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::{RunError, RunPaths, claim};

/// The end of the names of such claims.
const SUFFIX: &str = ".survivor";

/// The folder of a run as ranks see it that do not own it: its paths, and the name of the owner's claim.
#[derive(Clone, Debug)]
pub struct SharedFolder {
    paths: RunPaths,
    owner: OsString,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct CheckpointLock {
    staging: Staging,
    _lock: File,
}

impl SharedFolder {
    /// The folder at `root` with this claim of its owner; `None` where this machine does not see it. Call it while the owner lives.
    pub fn find(root: &Path, owner: &str) -> Option<Self> {
        let is_seen = !owner.is_empty() && root.join(owner).is_dir();
        is_seen.then(|| SharedFolder { paths: RunPaths::new(root), owner: owner.into() })
    }

    /// The paths in the folder.
    pub fn paths(&self) -> &RunPaths {
        &self.paths
    }

    /// Waits for this rank's turn, without a deadline. Refused if a later start has begun to write to the folder.
    pub fn lock_checkpoint(&self) -> Result<CheckpointLock, RunError> {
        let (root, config) = (self.paths.root(), self.paths.config());
        let lock = OpenOptions::new().write(true).open(&config).map_err(FileError::of("lock", &config))?;
        loop {
            match flock(&lock, FlockOperation::LockExclusive) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(FileError::of("lock", &config)(error.into()).into()),
            }
        }
        let own = root.join(claim::name_beside(&self.owner, SUFFIX));
        std::fs::create_dir(&own).map_err(FileError::of("create", &own))?;
        let lock = CheckpointLock { staging: Staging::new(own, claim::REMOVAL), _lock: lock };
        // Read after the own claim was created: of this rank and a later start, at least one sees the other's.
        let is_of_attempt = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default();
            name == self.owner || name.as_encoded_bytes().ends_with(SUFFIX.as_bytes())
        };
        match claim::entries(root)?.iter().any(|path| claim::is_claim(path) && !is_of_attempt(path)) {
            true => Err(RunError::Content { path: root.to_owned(), reason: claim::REMOVAL.to_owned() }),
            false => Ok(lock),
        }
    }
}

impl CheckpointLock {
    /// Where files are written before they are renamed.
    pub fn staging(&self) -> &Staging {
        &self.staging
    }
}

impl Drop for CheckpointLock {
    fn drop(&mut self) {
        // Already gone if a later start has taken over the run.
        let _ = std::fs::remove_dir(self.staging.folder());
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::{Attempt, RunConfig, RunFolder};

    #[test]
    fn a_later_start_ends_the_right_of_an_earlier_ones_survivors() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("run");
        let start = |restarts: usize| {
            let attempt = Attempt { job: "job".to_owned(), requeues: 0, restarts };
            RunFolder::open(RunPaths::new(&root), restarts > 0, &attempt).unwrap()
        };
        let first = start(0);
        first.write_config(&RunConfig::default()).unwrap();
        assert!(SharedFolder::find(&root, ".attempt-job-0-0-1.5").is_none(), "it may be another folder");
        let folder = SharedFolder::find(&root, &first.claim().to_string_lossy()).expect("the owner's claim is there");
        let write = |lock: &CheckpointLock| lock.staging().write_whole(&root.join("a"), |file| file.write_all(b"a"));
        // The owner need not be gone.
        write(&folder.lock_checkpoint().unwrap()).unwrap();
        drop(first);
        let lock = folder.lock_checkpoint().unwrap();
        let claims = claim::entries(&root).unwrap().iter().filter(|path| claim::is_claim(path)).count();
        assert_eq!(claims, 2, "the owner's of a named job stays");

        let _second = start(1);
        assert!(write(&lock).unwrap_err().to_string().contains(claim::REMOVAL));
        drop(lock);
        let error = folder.lock_checkpoint().unwrap_err().to_string();
        assert_eq!(error, format!("{}: {}", root.display(), claim::REMOVAL));
        let claims = claim::entries(&root).unwrap().iter().filter(|path| claim::is_claim(path)).count();
        assert_eq!(claims, 1, "those of the second start");
    }
}
