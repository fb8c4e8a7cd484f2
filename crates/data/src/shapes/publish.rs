//! Creates a folder whole or not at all, once, even if several processes try.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::DataError;

/// How long to wait for another process that is building the folder, before building it too.
const PATIENCE: Duration = Duration::from_secs(30);

/// The folder `name` in `cache`: unchanged if `is_whole`, otherwise built in a temporary sibling and renamed.
///
/// A lock lets one process build at a time; the kernel releases it when its holder ends. If locks do not work (on some
/// network file systems), or the holder takes too long, two processes may build: the rename decides, and both have the
/// same content.
/// systems), or the holder takes too long, two may build: the rename decides, and both have the same content.
pub(super) fn ensure(
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
    let lock = File::create(&path).map_err(|source| DataError::write(path, source))?;
    if wait_for(&lock, || is_whole(&folder)) {
        // No other process builds while this one holds the lock: temporary files were left by a process that died.
        remove_temporaries(cache, name);
    }
    if is_whole(&folder) {
        return Ok(folder);
    }
    let temporary = Temporary(cache.join(format!(".{name}.{}.tmp", std::process::id())));
    build(&temporary.0)?;
    if folder.exists() {
        // A damaged folder is moved away. A reader at this moment would have failed anyway.
        let aside = Temporary(cache.join(format!(".{name}.{}.old.tmp", std::process::id())));
        let _ = fs::rename(&folder, &aside.0);
    }
    match fs::rename(&temporary.0, &folder) {
        Err(_) if is_whole(&folder) => Ok(folder),
        Err(source) => Err(DataError::write(folder, source)),
        Ok(()) => Ok(folder),
    }
}

/// Waits for the lock; false if it is unavailable, or no longer needed.
fn wait_for(lock: &File, finished: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
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

fn remove_temporaries(cache: &Path, name: &str) {
    let prefix = format!(".{name}.");
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let file = entry.file_name();
        if file.to_str().is_some_and(|file| file.starts_with(&prefix) && file.ends_with(".tmp")) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// A folder that is removed on drop, unless it was renamed before.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
