//! A lock that the kernel releases when its owner ends, however that happens.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// A locked file. Dropped, it is unlocked.
#[derive(Debug)]
pub struct Lock(File);

impl Lock {
    /// Locks a file, which is created for this user alone if there is none. `None` if another process, or another lock of this one, has locked it.
    /// Waits for nothing. On a file system that knows no locks everybody gets it.
    ///
    /// # Errors
    /// The file cannot be created or opened, or the kernel refuses the lock.
    pub fn take(path: &Path) -> io::Result<Option<Lock>> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) | Err(Errno::NOSYS | Errno::NOTSUP | Errno::NOLCK) => Ok(Some(Lock(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Locks a file as [`Lock::take`] does, after its owner. `None` if that shows no progress for the `timeout`: `progress` then gives
    /// the same value all the time.
    ///
    /// # Errors
    /// Those of [`Lock::take`].
    pub fn wait<T: PartialEq>(
        path: &Path,
        timeout: Duration,
        mut progress: impl FnMut() -> T,
    ) -> io::Result<Option<Lock>> {
        const LONGEST: Duration = Duration::from_millis(100);
        let (mut seen, mut pause): (Option<(T, Instant)>, _) = (None, Duration::from_millis(1));
        loop {
            if let Some(lock) = Lock::take(path)? {
                return Ok(Some(lock));
            }
            let now = progress();
            match &seen {
                Some((before, since)) if *before == now && since.elapsed() >= timeout => return Ok(None),
                Some((before, _)) if *before == now => {}
                _ => seen = Some((now, Instant::now())),
            }
            std::thread::sleep(pause);
            pause = LONGEST.min(2 * pause);
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

    #[test]
    fn an_owner_that_goes_on_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let short = Duration::from_millis(1);
        let mut held = Some(Lock::take(&path).unwrap().unwrap());
        let mut steps = 0;
        assert!(Lock::wait(&path, short, || ()).unwrap().is_none());
        let owned = Lock::wait(&path, short, || {
            steps += 1;
            held = held.take().filter(|_| steps < 8);
            steps
        });
        assert!(owned.unwrap().is_some());
        assert_eq!(steps, 8);
        assert!(Lock::wait(&folder.path().join("none/lock"), short, || ()).is_err());
    }
}
