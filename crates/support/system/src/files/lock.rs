//! A lock that the kernel releases when its owner ends, however that happens.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// A locked file. Dropped, it is unlocked.
#[derive(Debug)]
pub struct Lock(File);

impl Lock {
    /// Locks a file, which is created for this user alone if there is none. `None` if another process, or another lock of this one, has locked it.
    /// Waits for nothing. On a file system that knows no locks everybody gets it.
    pub fn take(path: &Path) -> io::Result<Option<Lock>> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) | Err(Errno::NOSYS | Errno::NOTSUP | Errno::NOLCK) => Ok(Some(Lock(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The locked file.
    pub fn file(&self) -> &File {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_owner_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let lock = Lock::take(&path).unwrap().unwrap();
        assert!(Lock::take(&path).unwrap().is_none());
        // Regression test: other users could open the file, and hold its lock for ever.
        assert_eq!(std::os::unix::fs::MetadataExt::mode(&lock.file().metadata().unwrap()) & 0o777, 0o600);
        drop(lock);
        assert!(Lock::take(&path).unwrap().is_some());
        assert!(Lock::take(&folder.path().join("none/lock")).is_err());
    }
}
