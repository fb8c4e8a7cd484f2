//! A copy of a data set on a disk of this node (`--stage`), made once for all processes that read
//! it there.
//!
//! The copy has the names of the original, so that it is listed in the same order, and it appears
//! whole or not at all. It stays for later runs, which use it as long as names, lengths and times
//! of the original are the same. The tables of ImageNet above a tree are copied with it.
//!
//! A lock, which ends with its owner's process, chooses the process that copies. The others wait
//! for as long as its count of bytes grows. The copy is renamed when it is complete and on the
//! disk, and a marker with a hash of all names, lengths and times is written last. A later run
//! compares it with the original and with the copy.

mod copy;
mod tree;

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use enmasse_data::DataError;
use enmasse_datasets::LeftOut;
use enmasse_datasets::tables_above;
use enmasse_system::files::{FileError, Lock, Space, make_own_folder, read_text, write_whole};
use rustix::fs::syncfs;

use tree::{Entry, Tree};

/// Says what was copied. Written last: without it there is no copy.
const MARKER: &str = "staged.txt";

/// Locked by the process that copies, with its number and a count that grows while it goes on.
const LOCK: &str = "lock";

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StageError {
    /// The original cannot be read, or the copy cannot be written.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The place of the copy cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is too little space.
    #[error("{place}: the copy needs {needed} MB and {files} files, and there is space for {free} MB{}; free some space, or choose another folder", files_left(*free_files))]
    Space {
        /// The place of the copy.
        place: String,
        /// Megabytes of the copy.
        needed: u64,
        /// Files and folders of the copy.
        files: u64,
        /// Megabytes that are free.
        free: u64,
        /// Files that may still be created, if the file system counts them.
        free_files: Option<u64>,
    },
    /// Nothing goes on.
    #[error("{what} for {} s; check the disk or file server, or raise the timeout", .timeout.as_secs_f64())]
    Stalled {
        /// What does not go on.
        what: String,
        /// How long.
        timeout: Duration,
    },
    /// A thread could not be started.
    #[error("cannot start a thread: {0}; check the limit on processes (ulimit -u)")]
    Threads(std::io::Error),
}

fn files_left(files: Option<u64>) -> String {
    files.map_or(String::new(), |files| format!(" and {files} files"))
}

/// What is going on, for a line of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageEvent {
    /// The original is being listed, so many entries as yet.
    Listed(usize),
    /// So many bytes of so many are copied.
    Copied(u64, u64),
    /// Another process makes the copy.
    Waiting,
}

/// A copy to be made.
#[derive(Clone, Debug)]
pub struct Stage {
    source: PathBuf,
    /// Files in folders above it that belong to it. Their copies lie beside that of `source`, which is above it too.
    above: Vec<PathBuf>,
    place: PathBuf,
    timeout: Duration,
}

/// A copy that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staged {
    /// The copy: a file or a folder, with the name of the original.
    pub root: PathBuf,
    /// Bytes that were copied now; `None` if the copy was there.
    pub copied: Option<u64>,
    /// What of the original is neither a file nor a folder, and therefore not in the copy.
    pub left_out: LeftOut,
}

impl Stage {
    /// A copy of `source`, a file or a folder, in a folder of its own in `folder`.
    ///
    /// # Errors
    /// There is no such `source`.
    pub fn new(source: &Path, folder: &Path) -> Result<Self, StageError> {
        let source = source.canonicalize().map_err(|error| DataError::read(source, error))?;
        let mut name = source.file_name().unwrap_or("data".as_ref()).to_owned();
        // Data of the same name lie side by side.
        name.push(format!("-{}", &blake3::hash(source.as_os_str().as_bytes()).to_hex()[..12]));
        let above = tables_above(&source);
        Ok(Stage { place: folder.join(name), source, above, timeout: Duration::from_secs(600) })
    }

    /// How long nothing may go on, 600 seconds by default.
    pub fn timeout(self, timeout: Duration) -> Self {
        Stage { timeout, ..self }
    }

    /// The path of the copy.
    pub fn root(&self) -> PathBuf {
        self.place.join(self.source.file_name().unwrap_or("data".as_ref()))
    }

    /// Makes the copy, unless there is one that is still right. If another process is at it, waits for that one.
    ///
    /// Nothing is removed but what an earlier call has made in the same place.
    ///
    /// # Errors
    /// The original cannot be read or holds the place of the copy, the copy cannot be written or has too little space,
    /// or nothing goes on: here, or in the process that is waited for.
    pub fn make(&self, tell: &mut dyn FnMut(StageEvent)) -> Result<Staged, StageError> {
        let began = SystemTime::now();
        let parent = self.place.parent().unwrap_or(&self.place);
        fs::create_dir_all(parent).map_err(FileError::of("create", parent))?;
        let parent = parent.canonicalize().map_err(FileError::of("read", parent))?;
        if parent.starts_with(&self.source) {
            return Err(DataError::layout(parent, "the copy would be a part of the data; choose another folder").into());
        }
        make_own_folder(&self.place)?;
        let lock = self.lock(tell)?;
        // Another process of this job has just looked at every file.
        if self.checked().is_some_and(|checked| checked >= began) {
            return Ok(self.staged(None, LeftOut::default()));
        }
        let mut count = 0;
        let mut sign = || {
            count += 1;
            // Processes that wait read it; the copy does not depend on it.
            let _ = lock.file().write_all_at(format!("{} {count:020}", std::process::id()).as_bytes(), 0);
        };
        let source = Tree::of(&self.source, &mut |entries| {
            sign();
            tell(StageEvent::Listed(entries));
        })?;
        let above =
            self.above.iter().map(|path| Tree::of(path, &mut |_| ())).collect::<Result<Vec<Tree>, DataError>>()?;
        let described: String = [&source].into_iter().chain(&above).map(Tree::describe).collect();
        let marker = format!("{}\n{described}", self.source.display());
        if self.is_right(&marker, &described) {
            self.write_marker(&marker)?;
            return Ok(self.staged(None, source.left_out));
        }
        let copying = self.place.join("copying");
        let marker_path = self.place.join(MARKER);
        for earlier in [&marker_path, &self.root(), &copying].into_iter().chain(&self.copies_above()) {
            remove(earlier)?;
        }
        self.require_space([&source].into_iter().chain(&above))?;
        fs::create_dir(&copying).map_err(FileError::of("create", &copying))?;
        for (path, entry) in &source.entries {
            if *entry == Entry::Folder {
                let folder = copying.join(path);
                fs::create_dir(&folder).map_err(FileError::of("create", &folder))?;
            }
        }
        let total = source.bytes();
        for (path, tree) in [(&self.source, &source)].into_iter().chain(self.above.iter().zip(&above)) {
            let parent = path.parent().unwrap_or(path);
            copy::copy(tree, (parent, &copying), self.timeout, &mut |bytes| {
                sign();
                tell(StageEvent::Copied(bytes, total));
            })?;
        }
        // After a power cut files of the right length would have no content.
        let on_disk = File::open(&copying).and_then(|folder| Ok(syncfs(folder)?));
        on_disk.map_err(FileError::of("write", &copying))?;
        for place in self.copies_above().iter().chain([&self.root()]) {
            let name = place.file_name().unwrap_or("data".as_ref());
            fs::rename(copying.join(name), place).map_err(FileError::of("write", place))?;
        }
        remove(&copying)?;
        self.write_marker(&marker)?;
        Ok(self.staged(Some(total), source.left_out))
    }

    /// The copy that another process of this job has made, as it is.
    ///
    /// # Errors
    /// There is none, or it is gone.
    pub fn made(&self) -> Result<PathBuf, StageError> {
        match self.checked() {
            Some(_) => Ok(self.root()),
            None => {
                let missing = std::io::Error::new(ErrorKind::NotFound, "the copy is gone");
                Err(DataError::read(self.root(), missing).into())
            }
        }
    }

    fn staged(&self, copied: Option<u64>, left_out: LeftOut) -> Staged {
        Staged { root: self.root(), copied, left_out }
    }

    /// When the copy was last compared with the original.
    fn checked(&self) -> Option<SystemTime> {
        fs::metadata(self.place.join(MARKER)).and_then(|metadata| metadata.modified()).ok()
    }

    /// Whether the copy is that of the original, and complete: something that cleans up may have removed files of it.
    fn is_right(&self, marker: &str, described: &str) -> bool {
        let copies = [self.root()].into_iter().chain(self.copies_above());
        let describe = |copy: PathBuf| Tree::of(&copy, &mut |_| ()).map(|copy| copy.describe());
        read_text(&self.place.join(MARKER)).is_ok_and(|text| text == marker)
            && copies.map(describe).collect::<Result<String, _>>().is_ok_and(|copy| copy == described)
    }

    /// The paths of the copies of files that lie above the original.
    fn copies_above(&self) -> Vec<PathBuf> {
        self.above.iter().filter_map(|path| Some(self.place.join(path.file_name()?))).collect()
    }

    fn write_marker(&self, marker: &str) -> Result<(), StageError> {
        Ok(write_whole(&self.place.join(MARKER), |file| file.write_all(marker.as_bytes()))?)
    }

    /// Waits until no other process has the lock. One that shows no progress for [`Stage::timeout`] is an error.
    fn lock(&self, tell: &mut dyn FnMut(StageEvent)) -> Result<Lock, StageError> {
        let path = self.place.join(LOCK);
        // Half a text is another text, too.
        let text = || read_text(&path).unwrap_or_default();
        let taken = Lock::wait(&path, self.timeout, || {
            tell(StageEvent::Waiting);
            text()
        });
        taken.map_err(FileError::of("write", &path))?.ok_or_else(|| {
            let owner = text().split(' ').next().unwrap_or_default().to_owned();
            let what = format!("process {owner}, which copies to {}, does not go on", self.place.display());
            StageError::Stalled { what, timeout: self.timeout }
        })
    }

    fn require_space<'a>(&self, trees: impl Iterator<Item = &'a Tree>) -> Result<(), StageError> {
        let space = Space::of(&self.place).map_err(FileError::of("read", &self.place))?;
        let (mut needed, mut files) = (0, 0);
        for tree in trees {
            needed += tree.files().map(|(_, bytes)| bytes.div_ceil(space.block) * space.block).sum::<u64>();
            files += tree.entries.len() as u64;
        }
        if needed <= space.bytes && space.files.is_none_or(|free| files <= free) {
            return Ok(());
        }
        Err(StageError::Space {
            place: self.place.display().to_string(),
            needed: needed.div_ceil(1_000_000),
            files,
            free: space.bytes / 1_000_000,
            free_files: space.files,
        })
    }
}

/// Removes a file or a folder, if there is one.
fn remove(path: &Path) -> Result<(), FileError> {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(FileError::of("remove", path)(error)),
        _ => Ok(()),
    }
}
