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

    /// Its pixels. An error about bytes names their `place` in a list.
    pub fn read(&self, place: usize, reading: ReadOptions) -> Result<Image, ImageError> {
        match self {
            ImageSource::File(path) => decode::open(path, reading),
            ImageSource::Bytes(bytes) => decode::open_bytes(bytes, || self.name(place), reading),
        }
    }
}

macro_rules! sources {
    ($($type:ty => |$source:ident| $made:expr;)+) => {$(
        impl<'a> From<$type> for ImageSource<'a> {
            fn from($source: $type) -> Self {
                $made
            }
        }
    )+};
}

sources! {
    &'a [u8] => |bytes| ImageSource::Bytes(bytes);
    &'a Vec<u8> => |bytes| ImageSource::Bytes(bytes);
    &'a Path => |path| ImageSource::File(path.into());
    &'a PathBuf => |path| ImageSource::File(path.into());
    &'a str => |path| ImageSource::File(Path::new(path).into());
    &'a String => |path| ImageSource::File(Path::new(path).into());
    PathBuf => |path| ImageSource::File(path.into());
    String => |path| ImageSource::File(PathBuf::from(path).into());
}
