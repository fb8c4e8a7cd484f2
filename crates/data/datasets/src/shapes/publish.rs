//! Creates a folder whole or not at all, once, even if several processes try.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use enmasse_data::DataError;

/// How long to wait for another process that is building the folder, before building it too.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Age of a temporary folder that nobody is building in any more.
const ABANDONED: Duration = Duration::from_secs(3600);

/// The folder `name` in `cache`: unchanged if `is_whole`, otherwise built in a temporary sibling and renamed.
///
/// A lock lets one process build at a time; the kernel releases it when its holder ends. If locks do not work (on some
/// network file systems), or the holder takes too long, two processes may build: the rename decides, and both have the
/// same content.
pub(super) fn ensure(
    cache: &Path,
    name: &str,
    is_whole: impl Fn(&Path) -> bool,
    build: impl Fn(&Path) -> Result<(), DataError>,
) -> Result<PathBuf, DataError> {
    ensure_within(TIMEOUT, cache, name, is_whole, build)
}

fn ensure_within(
    timeout: Duration,
    cache: &Path,
    name: &str,
    is_whole: impl Fn(&Path) -> bool,
    build: impl Fn(&Path) -> Result<(), DataError>,
) -> Result<PathBuf, DataError> {
    let folder = cache.join(name);
    if is_whole(&folder) {
        return Ok(folder);
    }
    fs::create_dir_all(cache).map_err(|source| DataError::write(cache, source))?;
    let path = cache.join(format!(".{name}.lock"));
    let lock = File::options().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let lock = lock.map_err(|source| DataError::write(path, source))?;
    if wait_for(&lock, timeout, || is_whole(&folder)) {
        // Others may build while this one holds the lock, since they have not waited for it any longer.
        remove_abandoned(cache, name);
    }
    if is_whole(&folder) {
        return Ok(folder);
    }
    let temporary = Temporary::create(cache, name)?;
    build(&temporary.0)?;
    if folder.exists() && !is_whole(&folder) {
        // A damaged folder is moved away. A reader at this moment would have failed anyway.
        let aside = Temporary::create(cache, name)?;
        let _ = fs::rename(&folder, &aside.0);
    }
    match fs::rename(&temporary.0, &folder) {
        Err(_) if is_whole(&folder) => Ok(folder),
        Err(source) => Err(DataError::write(folder, source)),
        Ok(()) => Ok(folder),
    }
}

/// Waits for the lock; false if it is unavailable, or no longer needed.
fn wait_for(lock: &File, timeout: Duration, finished: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + timeout;
    loop {
        match lock.try_lock() {
            Ok(()) => return true,
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {}
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
        if finished() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Removes what processes that died have left.
fn remove_abandoned(cache: &Path, name: &str) {
    let prefix = format!(".{name}.");
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let file = entry.file_name();
        let age = entry.metadata().and_then(|found| found.modified()).ok().and_then(|time| time.elapsed().ok());
        if age.is_some_and(|age| age > ABANDONED)
            && file.to_str().is_some_and(|file| file.starts_with(&prefix) && file.ends_with(".tmp"))
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// A folder that is removed on drop, unless it was renamed before.
struct Temporary(PathBuf);

impl Temporary {
    /// An empty folder, which no other thread, process or host has.
    fn create(cache: &Path, name: &str) -> Result<Self, DataError> {
        let mut number = 0u64;
        loop {
            let path = cache.join(format!(".{name}.{}-{number}.tmp", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Temporary(path)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
                Err(source) => return Err(DataError::write(path, source)),
            }
        }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    /// Two threads once had one temporary folder, so that the slower one wrote into a folder that was gone.
    #[test]
    fn two_that_build_at_once_both_end_with_a_whole_folder() {
        let cache = tempfile::tempdir().unwrap();
        let (begun, written) = (Barrier::new(2), Barrier::new(2));
        let build = |folder: &Path| {
            begun.wait();
            fs::write(folder.join("a"), "whole").unwrap();
            written.wait();
            fs::write(folder.join("b"), "whole").map_err(|source| DataError::write(folder, source))
        };
        let is_whole = |folder: &Path| ["a", "b"].iter().all(|file| folder.join(file).exists());
        std::thread::scope(|scope| {
            let both = [(); 2].map(|()| {
                scope.spawn(|| ensure_within(Duration::ZERO, cache.path(), "name", is_whole, build).map(drop))
            });
            both.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
        });
        assert!(is_whole(&cache.path().join("name")));
        assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 2, "the folder and its lock");
    }
}
