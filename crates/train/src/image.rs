//! An image to classify: a file, or the bytes of one.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use enmasse_data::{DataError, Picture, ReadOptions, decode};

/// An image to classify: a file, or the bytes of a JPEG, PNG, WebP, BMP or GIF file in memory. Paths and bytes become one by
/// `into`.
#[derive(Clone, Debug)]
pub enum Image<'a> {
    /// A file.
    File(Cow<'a, Path>),
    /// The content of a file.
    Bytes(&'a [u8]),
}

impl Image<'_> {
    /// Its path, or `image 3` for the bytes at place 3 of a list.
    pub(crate) fn name(&self, place: usize) -> String {
        match self {
            Image::File(path) => path.display().to_string(),
            Image::Bytes(_) => format!("image {place}"),
        }
    }

    /// Its pixels.
    pub(crate) fn read(&self, place: usize, reading: ReadOptions) -> Result<Picture, DataError> {
        match self {
            Image::File(path) => decode::open(path, reading),
            Image::Bytes(bytes) => decode::open_bytes(bytes, || self.name(place), reading),
        }
    }
}

impl<'a> From<&'a [u8]> for Image<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Image::Bytes(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for Image<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Image::Bytes(bytes)
    }
}

impl<'a> From<&'a Path> for Image<'a> {
    fn from(path: &'a Path) -> Self {
        Image::File(path.into())
    }
}

impl<'a> From<&'a PathBuf> for Image<'a> {
    fn from(path: &'a PathBuf) -> Self {
        Image::File(path.into())
    }
}

impl From<PathBuf> for Image<'_> {
    fn from(path: PathBuf) -> Self {
        Image::File(path.into())
    }
}

impl<'a> From<&'a str> for Image<'a> {
    fn from(path: &'a str) -> Self {
        Image::File(Path::new(path).into())
    }
}

impl<'a> From<&'a String> for Image<'a> {
    fn from(path: &'a String) -> Self {
        Image::from(path.as_str())
    }
}

impl From<String> for Image<'_> {
    fn from(path: String) -> Self {
        Image::from(PathBuf::from(path))
    }
}
