//! Pieces of objects on the local disk, shared by the processes of a user on a machine.
//!
//! A piece has 1 MiB. It is a file that begins with a hash of the piece's number and of what
//! follows, keyed by the object's address, server and version. So a file that was damaged, or is
//! another one's, counts as missing. Which pieces there are is for the file system to say; nothing
//! is stored twice. A lock for each piece lets one process fetch it for all.

mod room;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use enmasse_system::files::{
    FileError, Lock, cache_folder, make_own_folder, open_regular, read_regular, write_unsynced,
};

use crate::source::Version;
use crate::{RemoteError, RemoteOptions};
use room::Room;

/// Bytes of a piece; the last one of an object may be shorter. Small, since the order of training is random: an image that
/// is not in the cache costs a piece.
pub(crate) const PIECE: u64 = 1 << 20;

/// Bytes of the hash at the start of a file.
const HASH: usize = blake3::OUT_LEN;

/// Limit of what is kept about an object besides its pieces.
const MAX_NAMED: u64 = 1 << 30;

/// The file that describes an object, and the limit of its bytes.
const ABOUT: &str = "object.txt";
const MAX_ABOUT: u64 = 64 << 10;

/// Extension of a piece's name. Other files of an object are dropped only together with all of it.
const EXTENSION: &str = "piece";

/// The same of the lock of a piece.
const LOCK: &str = "lock";

/// The cache.
#[derive(Debug)]
pub(crate) struct Cache {
    folder: PathBuf,
    room: Room,
}

impl Cache {
    /// Opens the folder, which is created if there is none. It belongs to this user.
    pub fn open(options: &RemoteOptions) -> Result<Self, RemoteError> {
        let folder = match &options.cache {
            Some(folder) => folder.clone(),
            None => cache_folder().map(|cache| cache.join("objects")).ok_or_else(|| {
                RemoteError::Setting(
                    "there is no home folder for the cache of remote data; name one with `cache_dir`".to_owned(),
                )
            })?,
        };
        let parent = enmasse_system::files::folder_of(&folder);
        fs::create_dir_all(parent).map_err(FileError::of("create", parent))?;
        make_own_folder(&folder)?;
        let room = Room::open(&folder, options.limit)?;
        Ok(Cache { folder, room })
    }

    /// The version of an object that was opened last, if there is one.
    pub fn latest(&self, address: &str, server: &str) -> Option<Version> {
        let own = folder_name(address, server, None);
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder).ok()?.flatten() {
            if entry.file_name().to_str().is_some_and(|name| name.starts_with(&own)) {
                let about = entry.path().join(ABOUT);
                let opened = about.metadata().and_then(|metadata| metadata.modified());
                found.extend(opened.map(|opened| (opened, entry.file_name(), about)));
            }
        }
        found.sort();
        // A description that was damaged is not that of its folder.
        found.into_iter().rev().find_map(|(_, name, about)| {
            let text = String::from_utf8(read_regular(&about, MAX_ABOUT).ok()?).ok()?;
            let (length, tag) = text.lines().nth(2)?.split_once(" bytes, version ")?;
            let version = Version { length: length.parse().ok()?, tag: tag.to_owned() };
            (name.to_str() == Some(&folder_name(address, server, Some(&version)))).then_some(version)
        })
    }

    /// Bytes that it can keep: its limit, or what the disk has for it.
    pub fn capacity(&self) -> u64 {
        self.room.capacity()
    }
}

/// The text that describes a version of an object, for people too.
fn description(address: &str, server: &str, version: &Version) -> String {
    format!("{address}\n{server}\n{version}\n")
}

/// The name of the folder of a version of an object, or what all of its versions begin with.
fn folder_name(address: &str, server: &str, version: Option<&Version>) -> String {
    let half = |text: &str| blake3::hash(text.as_bytes()).to_hex()[..32].to_owned();
    let object = half(&format!("{address}\n{server}\n"));
    match version {
        Some(version) => format!("{object}-{}", half(&description(address, server, version))),
        None => object + "-",
    }
}

/// Whether a name in the cache's folder is one of [`folder_name`].
fn is_object(name: &str) -> bool {
    let is_half = |half: &str| half.len() == 32 && half.bytes().all(|byte| byte.is_ascii_hexdigit());
    name.split_once('-').is_some_and(|(object, version)| is_half(object) && is_half(version))
}

/// Whether a name in an object's folder is one that the cache gives to files, or to those in the making.
fn is_own(name: &str) -> bool {
    match name.rsplit_once('.') {
        Some((_, extension)) => name == ABOUT || [EXTENSION, LOCK, "tmp"].contains(&extension),
        None => name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'),
    }
}

/// The pieces of one version of an object.
#[derive(Debug)]
pub(crate) struct Pieces {
    cache: Arc<Cache>,
    folder: PathBuf,
    /// Hash of address, server and version.
    key: [u8; HASH],
    length: u64,
    /// A bit for each piece that this process has found whole.
    checked: Vec<AtomicU64>,
}

impl Pieces {
    pub fn open(cache: Arc<Cache>, address: &str, server: &str, version: &Version) -> Result<Self, RemoteError> {
        let Version { length, .. } = version;
        let description = description(address, server, version);
        let hash = blake3::hash(description.as_bytes());
        let name = folder_name(address, server, Some(version));
        let folder = cache.folder.join(&name);
        make_own_folder(&folder)?;
        // Its time says when a run last opened the object.
        write_unsynced(&folder.join(ABOUT), |file| file.write_all(description.as_bytes()))?;
        cache.room.uses(name);
        let checked = (0..length.div_ceil(PIECE).div_ceil(64)).map(|_| AtomicU64::default()).collect();
        Ok(Pieces { folder, key: *hash.as_bytes(), length: *length, checked, cache })
    }

    /// Fills `bytes` from the byte `at` of a piece on. False if the cache does not have it.
    pub fn read(&self, piece: u64, at: usize, bytes: &mut [u8]) -> bool {
        let word = &self.checked[(piece / 64) as usize];
        let bit = 1 << (piece % 64);
        if word.load(Ordering::Relaxed) & bit != 0 {
            let file = open_regular(&self.path(piece));
            return file.and_then(|file| file.read_exact_at(bytes, (HASH + at) as u64)).is_ok();
        }
        let Some(found) = self.load(piece) else { return false };
        bytes.copy_from_slice(&found[at..at + bytes.len()]);
        true
    }

    /// The bytes of a piece, if the cache has it. A damaged file is removed.
    pub fn load(&self, piece: u64) -> Option<Vec<u8>> {
        let length = PIECE.min(self.length - piece * PIECE);
        let found = load(&self.path(piece), length, |bytes| self.hash(&piece.to_le_bytes(), bytes))?;
        if found.len() as u64 != length {
            return None;
        }
        self.checked[(piece / 64) as usize].fetch_or(1 << (piece % 64), Ordering::Relaxed);
        Some(found)
    }

    /// Whether there is a file of a piece.
    pub fn has(&self, piece: u64) -> bool {
        self.path(piece).exists()
    }

    /// Keeps a piece. It is no error if that does not succeed: a disk without room costs time, not the run.
    pub fn store(&self, piece: u64, bytes: &[u8]) {
        self.write(&self.path(piece), &self.hash(&piece.to_le_bytes(), bytes), bytes);
    }

    /// The same for what is known about the object besides its bytes.
    pub fn load_named(&self, name: &str) -> Option<Vec<u8>> {
        load(&self.folder.join(name), MAX_NAMED, |bytes| self.hash(name.as_bytes(), bytes))
    }

    pub fn store_named(&self, name: &str, bytes: &[u8]) {
        self.write(&self.folder.join(name), &self.hash(name.as_bytes(), bytes), bytes);
    }

    /// Bytes that may be fetched ahead of their use: few enough that they are still there then, and so are those of other ranks.
    pub fn room_ahead(&self) -> u64 {
        self.cache.capacity() / 16
    }

    /// The right to fetch a piece; `None` while another process or thread has it.
    pub fn claim(&self, piece: u64) -> Option<Claim> {
        let path = self.folder.join(format!("{piece}.{LOCK}"));
        match Lock::take(&path) {
            Ok(lock) => lock.map(|lock| Claim { path, _lock: Some(lock) }),
            // Without a folder for locks each one fetches for itself.
            Err(_) => Some(Claim { path, _lock: None }),
        }
    }

    fn path(&self, piece: u64) -> PathBuf {
        self.folder.join(format!("{piece}.{EXTENSION}"))
    }

    /// The hash of the file `name`, whose content is `bytes`.
    fn hash(&self, name: &[u8], bytes: &[u8]) -> [u8; HASH] {
        *blake3::Hasher::new_keyed(&self.key).update(name).update(bytes).finalize().as_bytes()
    }

    fn write(&self, path: &Path, hash: &[u8; HASH], bytes: &[u8]) {
        if self.cache.room.reserve((HASH + bytes.len()) as u64) {
            // Its readers check the hash, so it need not be on the disk yet.
            let _ = write_unsynced(path, |file| file.write_all(hash).and_then(|()| file.write_all(bytes)));
        }
    }
}

/// The right to fetch a piece, until it is dropped.
pub(crate) struct Claim {
    path: PathBuf,
    _lock: Option<Lock>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Before it is unlocked. Two may hold claims for a moment, and then fetch twice.
        let _ = fs::remove_file(&self.path);
    }
}

/// The content of a file that begins with a hash of it. One that has another content is removed.
fn load(path: &Path, longest: u64, hash: impl Fn(&[u8]) -> [u8; HASH]) -> Option<Vec<u8>> {
    let mut found = Vec::new();
    let file: File = open_regular(path).ok()?;
    file.take(longest + HASH as u64 + 1).read_to_end(&mut found).ok()?;
    let whole = found.split_at_checked(HASH).is_some_and(|(own, bytes)| own == hash(bytes));
    if !whole {
        let _ = fs::remove_file(path);
        return None;
    }
    found.drain(..HASH);
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(folder: &Path, limit: u64) -> Arc<Cache> {
        let options = RemoteOptions { cache: Some(folder.to_owned()), limit, ..RemoteOptions::default() };
        Arc::new(Cache::open(&options).unwrap())
    }

    fn pieces(cache: &Arc<Cache>, tag: &str) -> Pieces {
        let version = Version { length: 3 * PIECE - 10, tag: tag.to_owned() };
        Pieces::open(cache.clone(), "s3://data/a", "S3", &version).unwrap()
    }

    #[test]
    fn damaged_files_are_missing() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), 1 << 30);
        let bytes: Vec<u8> = (0..PIECE).map(|byte| byte as u8).collect();
        let path = pieces(&cache, "1").path(1);
        let check = |damage: &dyn Fn(&mut Vec<u8>), expected: bool| {
            // Another process, which has not read the piece yet.
            let pieces = pieces(&cache, "1");
            pieces.store(1, &bytes);
            let mut file = fs::read(&path).unwrap();
            damage(&mut file);
            fs::write(&path, file).unwrap();
            let mut read = [0; 4];
            assert_eq!((pieces.read(1, 255, &mut read), path.exists()), (expected, expected));
            assert!(!expected || read == [255, 0, 1, 2]);
        };
        check(&|_| (), true);
        check(&|file| file[HASH + 300] ^= 1, false);
        check(&|file| file[0] ^= 1, false);
        check(&|file| file.truncate(HASH + 300), false);
        check(&|file| file.push(0), false);
        check(&|file| file.clear(), false);
        // A piece in the place of another, and of another version.
        let own = pieces(&cache, "1");
        own.store(1, &bytes);
        fs::copy(own.path(1), own.path(0)).unwrap();
        let other = pieces(&cache, "2");
        fs::copy(own.path(1), other.path(1)).unwrap();
        assert_eq!((own.load(0), other.load(1), own.load(1)), (None, None, Some(bytes)));
    }

    #[test]
    fn one_fetches_and_others_wait() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), 1 << 30);
        let (one, other) = (pieces(&cache, "1"), pieces(&cache, "1"));
        let claim = one.claim(0).unwrap();
        assert!(other.claim(0).is_none() && other.claim(1).is_some());
        drop(claim);
        assert!(other.claim(0).is_some());
    }
}
