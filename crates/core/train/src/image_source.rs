//! An image to classify: a file, or the bytes of one.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use enmasse_image::{Image, ImageError, ReadOptions, decode};

/// An image to classify: a file, or the bytes of a JPEG, PNG, WebP, BMP or GIF file in memory. Paths and bytes become one by
/// `into`.
#[derive(Clone, Debug)]
pub enum ImageSource<'a> {
    /// A file.
    File(Cow<'a, Path>),
    /// The content of a file.
    Bytes(&'a [u8]),
}

impl ImageSource<'_> {
    /// Its path, or `image 3` for the bytes at place 3 of a list.
    pub(crate) fn name(&self, place: usize) -> String {
        match self {
            ImageSource::File(path) => path.display().to_string(),
            ImageSource::Bytes(_) => format!("image {place}"),
        }
    }

    /// Its pixels.
    pub(crate) fn read(&self, place: usize, reading: ReadOptions) -> Result<Image, ImageError> {
        match self {
            ImageSource::File(path) => decode::open(path, reading),
            ImageSource::Bytes(bytes) => decode::open_bytes(bytes, || self.name(place), reading),
        }
    }
}

impl<'a> From<&'a [u8]> for ImageSource<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        ImageSource::Bytes(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for ImageSource<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        ImageSource::Bytes(bytes)
    }
}

impl<'a> From<&'a Path> for ImageSource<'a> {
    fn from(path: &'a Path) -> Self {
        ImageSource::File(path.into())
    }
}

impl<'a> From<&'a PathBuf> for ImageSource<'a> {
    fn from(path: &'a PathBuf) -> Self {
        ImageSource::File(path.into())
    }
}

impl From<PathBuf> for ImageSource<'_> {
    fn from(path: PathBuf) -> Self {
        ImageSource::File(path.into())
    }
}

impl<'a> From<&'a str> for ImageSource<'a> {
    fn from(path: &'a str) -> Self {
        ImageSource::File(Path::new(path).into())
    }
}

impl<'a> From<&'a String> for ImageSource<'a> {
    fn from(path: &'a String) -> Self {
        ImageSource::from(path.as_str())
    }
}

impl From<String> for ImageSource<'_> {
    fn from(path: String) -> Self {
        ImageSource::from(PathBuf::from(path))
    }
}
