//! Extracts archives into a folder that nothing leaves, within limits.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::{Component, Path, PathBuf};

use enmasse_system::files::{FileError, open_regular};
use flate2::read::MultiGzDecoder;
use tar::EntryType;
use thiserror::Error;

use crate::fetch::{Archive, FetchError, Form};

/// Limit of the number of entries of a tar file.
const MAX_ENTRIES: usize = 100_000;

/// Extracts the archive in the file `part` below `folder`/`top`.
pub(crate) fn unpack(archive: &Archive, top: &str, part: &Path, folder: &Path) -> Result<(), FetchError> {
    let file = open_regular(part).map_err(FileError::of("read", part))?;
    let content = Content { inner: MultiGzDecoder::new(BufReader::new(file)), left: archive.unpacked };
    match archive.form {
        Form::Tar => unpack_tar(archive, top, content, folder),
        Form::File(path) => write(archive, content, &folder.join(top).join(path)).map(drop),
    }
}

fn unpack_tar(archive: &Archive, top: &str, content: impl Read, folder: &Path) -> Result<(), FetchError> {
    let refuse = |problem: String| FetchError::Archive { archive: archive.name.to_owned(), problem };
    let damaged = |error: io::Error| refuse(error.to_string());
    let mut content = tar::Archive::new(content);
    for (number, entry) in content.entries().map_err(damaged)?.enumerate() {
        let mut entry = entry.map_err(damaged)?;
        let path = entry.path().map_err(damaged)?.into_owned();
        if number >= MAX_ENTRIES {
            return Err(refuse(format!("it has more than {MAX_ENTRIES} entries")));
        }
        let inside = inside(&path).ok_or_else(|| refuse(format!("{} leads out of the folder", path.display())))?;
        if inside.components().next().map(Component::as_os_str) != Some(OsStr::new(top)) {
            continue;
        }
        let place = folder.join(&inside);
        match entry.header().entry_type() {
            EntryType::Directory => fs::create_dir_all(&place).map_err(FileError::of("create", &place))?,
            EntryType::Regular | EntryType::Continuous => {
                let size = entry.size();
                let written = write(archive, &mut entry, &place)?;
                if written != size {
                    return Err(refuse(format!("{} ends too early", path.display())));
                }
            }
            EntryType::XGlobalHeader => {}
            _ => return Err(refuse(format!("{} is neither a file nor a folder", path.display()))),
        }
    }
    match folder.join(top).is_dir() {
        true => Ok(()),
        false => Err(refuse(format!("it has no folder {top}"))),
    }
}

/// The path without `.` components; `None` if it is absolute, or leaves the folder in which it begins.
fn inside(path: &Path) -> Option<PathBuf> {
    path.components()
        .filter(|part| *part != Component::CurDir)
        .map(|part| match part {
            Component::Normal(name) => Some(name),
            _ => None,
        })
        .collect()
}

/// Writes a new file, and returns its length. Its folder is created if there is none.
fn write(archive: &Archive, content: impl Read, path: &Path) -> Result<u64, FetchError> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).map_err(FileError::of("create", parent))?;
    // Of two entries with one name the second is an error, so no file is written by way of another.
    let mut file: File =
        OpenOptions::new().write(true).create_new(true).open(path).map_err(FileError::of("write", path))?;
    io::copy(&mut { content }, &mut file).map_err(|error| match error.get_ref() {
        Some(inner) if inner.is::<Damaged>() => {
            FetchError::Archive { archive: archive.name.to_owned(), problem: error.to_string() }
        }
        _ => FileError::of("write", path)(error).into(),
    })
}

/// What an archive has when it is decompressed. Its errors can be told from those of the file that is written.
struct Content<R> {
    inner: R,
    /// Bytes that may still come.
    left: u64,
}

#[derive(Debug, Error)]
enum Damaged {
    #[error("it is damaged: {0}")]
    Stream(io::Error),
    #[error("it has more bytes than it may when it is decompressed")]
    TooLong,
}

impl<R: Read> Read for Content<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = match self.inner.read(bytes) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
            read => read.map_err(|error| io::Error::other(Damaged::Stream(error)))?,
        };
        match self.left.checked_sub(read as u64) {
            Some(left) => self.left = left,
            None => return Err(io::Error::other(Damaged::TooLong)),
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_leaves_the_folder() {
        let check = |path: &str, expected: Option<&str>| {
            assert_eq!(inside(Path::new(path)).as_deref(), expected.map(Path::new), "{path}");
        };
        check("a/b", Some("a/b"));
        check("./a/./b", Some("a/b"));
        check("a//b/", Some("a/b"));
        check("a/../b", None);
        check("..", None);
        check("/a", None);
        check("", Some(""));
    }
}
