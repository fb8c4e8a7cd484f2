//! A file, or an object on a server, that holds many images, of which each thread reads those that it needs.
//!
//! Records are read, not mapped: a file that is cut short under a mapping kills the process, and a read of it is an error.
//! The copy is into memory that a thread reuses, and takes hundredths of the time of decoding a JPEG.

use std::fs::File;
use std::io::{self, Error, ErrorKind, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use enmasse_data::{DataError, Extent};
use enmasse_image::decode::{self, MAX_FILE_BYTES, ReadOptions};
use enmasse_image::{ImageRegion, RegionRequest};
use enmasse_remote::Object;
use enmasse_system::files::{open_regular, reuse};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::file_reader::FileReader;

/// An open regular file, or an object. It stays the same one if another takes its path.
#[derive(Debug)]
pub struct Container {
    path: PathBuf,
    source: Source,
    length: u64,
}

#[derive(Debug)]
enum Source {
    File(File),
    Object(Arc<Object>),
}

impl Container {
    /// Opens a file, or a link to one.
    ///
    /// # Errors
    /// It cannot be opened, or is something else: the error says what.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, DataError> {
        let path = path.into();
        let opened = open_regular(&path).and_then(|file| Ok((file.metadata()?.len(), file)));
        match opened {
            Ok((length, file)) => Ok(Container { path, source: Source::File(file), length }),
            Err(source) => Err(DataError::read(path, source)),
        }
    }

    pub(crate) fn of_object(object: Arc<Object>) -> Self {
        Container { path: object.address().into(), length: object.length(), source: Source::Object(object) }
    }

    /// The path that was opened, or the object's address.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of it when it was opened.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Fills `bytes` with those from `offset` on. Any number of threads may read at a time.
    ///
    /// # Errors
    /// The file ends before, or has been cut short since it was opened, or cannot be read. A part of `bytes` may be
    /// filled then.
    pub fn fill(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DataError> {
        let end = self.end(offset, bytes.len())?;
        match &self.source {
            Source::File(file) => file.read_exact_at(bytes, offset).map_err(|error| match error.kind() {
                ErrorKind::UnexpectedEof => self.ends_before(end),
                _ => DataError::read(&self.path, error),
            }),
            Source::Object(object) => Ok(object.fill(offset, bytes)?),
        }
    }

    /// Makes `bytes` the `length` bytes from `offset` on. The memory is reused, and reserved only after the place has been
    /// compared with the file's length, so both numbers may come from the file.
    ///
    /// # Errors
    /// Those of [`fill`](Self::fill), or there is no memory for them.
    pub fn read(&self, offset: u64, length: usize, bytes: &mut Vec<u8>) -> Result<(), DataError> {
        self.end(offset, length)?;
        reuse(bytes, length).map_err(|source| DataError::read(&self.path, source))?;
        self.fill(offset, bytes)
    }

    /// [`decode::read_part`] of the image file that is the `length` bytes from `offset` on. `name` is for error messages.
    ///
    /// # Errors
    /// Those of [`read`](Self::read) and of [`decode::read_part`], or the image file is too large.
    pub fn read_part(
        &self,
        (offset, length): (u64, usize),
        name: impl FnOnce() -> String,
        options: ReadOptions,
        wanted: &dyn Fn(usize, usize) -> RegionRequest,
        view: &mut ImageRegion,
    ) -> Result<(), DataError> {
        if length as u64 > MAX_FILE_BYTES {
            return Err(DataError::image(name(), format!("it has more than {MAX_FILE_BYTES} bytes")));
        }
        view.with_file(|bytes, view| {
            self.read(offset, length, bytes)?;
            Ok(decode::read_part_of(bytes, name, options, wanted, view)?)
        })
    }

    pub(crate) fn is_remote(&self) -> bool {
        matches!(self.source, Source::Object(_))
    }

    /// These bytes, if they are those of an object.
    pub(crate) fn extent(&self, bytes: Range<u64>) -> Option<Extent> {
        match &self.source {
            Source::Object(object) => Some(Extent { object: object.clone(), bytes }),
            Source::File(_) => None,
        }
    }

    /// Reads it from its start to its end, once.
    pub(crate) fn reader(&self) -> Reader<'_> {
        match &self.source {
            Source::File(file) => Reader::File(FileReader::new(file)),
            Source::Object(object) => Reader::Object(object.reader()),
        }
    }

    /// What `find` finds out about the whole content. About an object that takes the time of fetching it, so what was found is
    /// kept under `name` as long as the cache keeps the object.
    pub(crate) fn known<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        find: impl FnOnce() -> Result<T, DataError>,
    ) -> Result<T, DataError> {
        let Source::Object(object) = &self.source else { return find() };
        if let Some(known) = object.kept(name).and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
            return Ok(known);
        }
        let found = find()?;
        if let Ok(bytes) = serde_json::to_vec(&found) {
            object.keep(name, &bytes);
        }
        Ok(found)
    }

    /// The end of the `length` bytes from `offset` on, unless the file ends before.
    fn end(&self, offset: u64, length: usize) -> Result<u64, DataError> {
        let end = offset.saturating_add(length as u64);
        if end > self.length { Err(self.ends_before(end)) } else { Ok(end) }
    }

    fn ends_before(&self, end: u64) -> DataError {
        let problem = format!("it ends before byte {end}: truncated, or still being written");
        DataError::read(&self.path, Error::new(ErrorKind::UnexpectedEof, problem))
    }
}

/// [`Container::reader`].
pub enum Reader<'a> {
    File(FileReader<'a, File>),
    Object(enmasse_remote::Reader),
}

impl Read for Reader<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Reader::File(file) => file.read(bytes),
            Reader::Object(object) => object.read(bytes),
        }
    }
}

impl Seek for Reader<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            Reader::File(file) => file.seek(to),
            Reader::Object(object) => object.seek(to),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn records_end_where_the_file_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, b"0123456789").unwrap();
        let container = Container::open(&path).unwrap();
        assert_eq!((container.path(), container.length()), (path.as_path(), 10));
        let mut bytes = Vec::new();
        let mut check = |offset: u64, length: usize, expected: Result<&[u8], &str>| {
            let found = container.read(offset, length, &mut bytes).map(|()| bytes.as_slice());
            let expected = expected.map_err(|problem| format!("cannot read {}: {problem}", path.display()));
            assert_eq!(found.map_err(|error| error.to_string()), expected);
        };
        check(0, 10, Ok(b"0123456789"));
        check(3, 4, Ok(b"3456"));
        check(10, 0, Ok(b""));
        check(7, 4, Err("it ends before byte 11: truncated, or still being written"));
        check(11, 0, Err("it ends before byte 11: truncated, or still being written"));
        let last = "it ends before byte 18446744073709551615: truncated, or still being written";
        check(u64::MAX, 1, Err(last));
        check(1, usize::MAX, Err(last));
        // Cut short under the reader.
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(5).unwrap();
        check(3, 2, Ok(b"34"));
        check(3, 3, Err("it ends before byte 6: truncated, or still being written"));
        assert!(container.fill(3, &mut [0; 3]).unwrap_err().is_unreadable());
        assert!(Container::open(folder.path()).unwrap_err().to_string().ends_with("it is a folder, not a file"));
    }
}
