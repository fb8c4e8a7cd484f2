//! Keeps the cache below its limit, and leaves some space on the disk.
//!
//! How much there is stands in a file, which is locked while it changes, so it holds for all processes together. What is evicted
//! is drawn at random: a run reads each sample once per epoch, so whatever it has not used for the longest time is what it needs
//! next. What came last stays, since it may have been fetched ahead.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use enmasse_system::files::{FileError, Lock, Space};

use super::{ABOUT, EXTENSION, is_object, is_own};
use crate::{RemoteError, lock};

/// Its size: a decimal number.
const SIZE: &str = ".enmasse-size";

/// Bytes that stay free on the disk.
const FREE: u64 = 64 << 20;

/// Bytes without which there is no use in a cache.
const MIN: u64 = 64 << 20;

/// How long to wait for the lock of the file. After that a piece is not kept.
const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Room {
    folder: PathBuf,
    limit: u64,
    /// Names of the objects that this process reads.
    used: Mutex<HashSet<String>>,
}

/// A file that may be evicted.
struct Found {
    path: PathBuf,
    bytes: u64,
    /// When it was written.
    written: SystemTime,
    /// Those that come first are evicted first.
    turn: (Use, SystemTime, u64),
}

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    /// An object that this process does not read.
    Other,
    /// An object that it reads.
    Own,
    /// The same, and it was written last.
    Latest,
}

impl Room {
    pub fn open(folder: &Path, limit: u64) -> Result<Self, RemoteError> {
        let room = Room { folder: folder.to_owned(), limit, used: Mutex::default() };
        let free = Space::of(folder).map_err(FileError::of("read", folder))?.bytes;
        if room.capacity() < MIN.min(limit) {
            let folder = folder.display().to_string();
            return Err(RemoteError::Room { folder, free: free / 1_000_000, needed: (FREE + MIN).div_ceil(1_000_000) });
        }
        Ok(room)
    }

    /// Bytes that it can keep.
    pub fn capacity(&self) -> u64 {
        let size =
            fs::read_to_string(self.folder.join(SIZE)).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        self.limit.min(self.free().saturating_add(size))
    }

    /// Bytes that may still be written.
    fn free(&self) -> u64 {
        Space::of(&self.folder).map_or(0, |space| space.bytes.saturating_sub(FREE))
    }

    /// Takes note that this process reads the object in the folder `name`.
    pub fn uses(&self, name: String) {
        lock(&self.used).insert(name);
    }

    /// Whether so many bytes may be written. They count from now on. Evicts others for them.
    pub fn reserve(&self, bytes: u64) -> bool {
        if bytes > self.limit {
            return false;
        }
        let Some(own) = self.locked() else { return false };
        let mut text = [0; 20];
        let read = own.file().read_at(&mut text, 0).unwrap_or(0);
        let noted = std::str::from_utf8(&text[..read]).ok().and_then(|text| text.trim().parse().ok());
        let mut size: u64 = noted.unwrap_or_else(|| self.files().iter().map(|found| found.bytes).sum());
        if size.saturating_add(bytes) > self.limit || self.free() < bytes {
            size = self.evict(bytes);
        }
        let fits = size.saturating_add(bytes) <= self.limit && self.free() >= bytes;
        let size = if fits { size + bytes } else { size };
        fits & own.file().write_all_at(format!("{size:020}").as_bytes(), 0).is_ok()
    }

    fn locked(&self) -> Option<Lock> {
        Lock::wait(&self.folder.join(SIZE), TIMEOUT, || ()).ok().flatten()
    }

    /// Removes files until an eighth of the limit is free beyond `bytes`, and returns the size of what stays.
    fn evict(&self, bytes: u64) -> u64 {
        let mut files = self.files();
        let mut size: u64 = files.iter().map(|found| found.bytes).sum();
        let kept = self.limit.min(size.saturating_add(self.free()));
        mark_latest(&mut files, kept / 4);
        files.sort_unstable_by_key(|found| found.turn);
        let target = (kept - kept / 8).saturating_sub(bytes);
        for found in files {
            if size <= target {
                break;
            }
            let (used, ..) = found.turn;
            if used != Use::Other && found.path.extension().is_none_or(|extension| extension != EXTENSION) {
                continue;
            }
            // If another process has removed it, its space is free as well.
            let _ = fs::remove_file(&found.path);
            size -= found.bytes;
        }
        size
    }

    /// All files of objects: first those that this process does not read, from the one that was opened longest ago on. What else lies
    /// in the folder is the user's, and neither counts nor goes.
    fn files(&self) -> Vec<Found> {
        let (random, used) = (RandomState::new(), lock(&self.used).clone());
        let mut found = Vec::new();
        for object in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let is_folder = object.file_type().is_ok_and(|kind| kind.is_dir());
            if !is_folder || !object.file_name().to_str().is_some_and(is_object) {
                continue;
            }
            let opened = fs::metadata(object.path().join(ABOUT)).and_then(|metadata| metadata.modified());
            let opened = opened.unwrap_or(SystemTime::UNIX_EPOCH);
            let own = object.file_name().to_str().is_some_and(|name| used.contains(name));
            let turn = |path: &PathBuf| match own {
                true => (Use::Own, SystemTime::UNIX_EPOCH, random.hash_one(path)),
                false => (Use::Other, opened, 0),
            };
            for file in fs::read_dir(object.path()).into_iter().flatten().flatten() {
                // Of the entry itself, not of what a link leads to.
                let Ok(metadata) = file.metadata() else { continue };
                if !metadata.is_file() || !file.file_name().to_str().is_some_and(is_own) {
                    continue;
                }
                let path = file.path();
                let written = metadata.modified().unwrap_or(opened);
                found.push(Found { turn: turn(&path), path, bytes: metadata.len(), written });
            }
        }
        found
    }
}

/// Marks the files of objects that this process reads that were written last, up to so many bytes.
fn mark_latest(files: &mut [Found], bytes: u64) {
    files.sort_unstable_by_key(|found| Reverse(found.written));
    let mut left = bytes;
    for found in files.iter_mut().filter(|found| found.turn.0 == Use::Own) {
        let Some(rest) = left.checked_sub(found.bytes) else { break };
        (left, found.turn.0) = (rest, Use::Latest);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// The name of an object's folder.
    fn object(letter: &str) -> String {
        format!("{0}-{0}", letter.repeat(32))
    }

    #[test]
    fn the_limit_holds() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path();
        let room = Room::open(folder, 1000).unwrap();
        let (own, other) = (object("a"), object("b"));
        room.uses(own.clone());
        for object in [&own, &other] {
            fs::create_dir(folder.join(object)).unwrap();
        }
        let path =
            |name: &str| folder.join(name.replace("own/", &format!("{own}/")).replace("other/", &format!("{other}/")));
        let write = |name: &str, bytes: u64| {
            let fits = room.reserve(bytes);
            if fits {
                fs::write(path(name), vec![0; bytes as usize]).unwrap();
            }
            fits
        };
        let there = |name: &str| path(name).exists();
        assert!(write("other/index", 100) && write("own/index", 100) && write("own/0.piece", 300));
        assert!(write("other/0.piece", 500));
        // What this process does not read goes first.
        assert!(write("own/1.piece", 400));
        assert!(there("own/0.piece") && there("own/1.piece") && !there("other/0.piece"));
        // Then pieces, and never what is known about an object in use.
        assert!(write("own/2.piece", 700));
        assert!(!there("own/0.piece") && !there("own/1.piece") && there("own/2.piece") && there("own/index"));
        assert!(!write("own/3.piece", 1001));
        let total: u64 = room.files().iter().map(|found| found.bytes).sum();
        assert!(total <= 1000, "{total}");
        // A note that was lost is made again from what is there.
        fs::write(folder.join(SIZE), "").unwrap();
        assert!(write("own/4.piece", 10));
        let note: u64 = fs::read_to_string(folder.join(SIZE)).unwrap().parse().unwrap();
        assert_eq!(note, room.files().iter().map(|found| found.bytes).sum::<u64>());
    }

    /// What was fetched ahead was evicted before it was read.
    #[test]
    fn what_came_last_goes_last() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path();
        let room = Room::open(folder, 1600).unwrap();
        let own = folder.join(object("a"));
        room.uses(object("a"));
        fs::create_dir(&own).unwrap();
        for number in 0..16 {
            let path = own.join(format!("{number}.piece"));
            assert!(room.reserve(100));
            fs::write(&path, [0; 100]).unwrap();
            let written = SystemTime::UNIX_EPOCH + Duration::from_secs(1000 - number);
            fs::File::options().write(true).open(&path).unwrap().set_modified(written).unwrap();
        }
        room.evict(1000);
        let there = (0..16).filter(|number| own.join(format!("{number}.piece")).exists());
        assert_eq!(there.collect::<Vec<u64>>(), [0, 1, 2, 3]);
    }

    /// A folder of the user's as the cache lost its checkpoints, which counted as those of an object that nobody reads.
    #[test]
    fn files_of_others_stay() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("cache");
        let elsewhere = place.path().join("elsewhere");
        let (linked, object) = (object("a"), object("b"));
        for name in ["runs", &object] {
            fs::create_dir_all(folder.join(name)).unwrap();
        }
        fs::create_dir(&elsewhere).unwrap();
        symlink(&elsewhere, folder.join(&linked)).unwrap();
        let foreign = [
            folder.join("runs/last.safetensors"),
            folder.join("runs/0.piece"),
            elsewhere.join("0.piece"),
            folder.join(&object).join("notes.txt"),
        ];
        let own = ["0.piece", "1.lock", ABOUT, "samples-0a"].map(|name| folder.join(&object).join(name));
        foreign.iter().chain(&own).for_each(|path| fs::write(path, [0; 100]).unwrap());
        symlink(&foreign[0], folder.join(&object).join("2.piece")).unwrap();
        let room = Room::open(&folder, 300).unwrap();
        assert_eq!(room.files().iter().map(|found| found.bytes).sum::<u64>(), 400);
        assert_eq!(room.evict(300), 0);
        assert!(foreign.iter().all(|path| path.exists()) && !own.iter().any(|path| path.exists()));
        assert!(folder.join(&object).join("2.piece").exists());
    }
}
