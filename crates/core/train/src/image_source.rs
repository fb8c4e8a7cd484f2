//! An image to classify: a file, the bytes of one, or pixels.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use enmasse_image::{Image, ImageError, ReadOptions, decode};

/// An image to classify: a file, the bytes of a JPEG, PNG, WebP, BMP or GIF file in memory, or pixels. Paths, bytes and images become
/// one by `into`.
#[derive(Clone, Debug)]
pub enum ImageSource<'a> {
    /// A file.
    File(Cow<'a, Path>),
    /// The content of a file.
    Bytes(&'a [u8]),
    /// Pixels.
    Pixels(Cow<'a, Image>),
}

impl ImageSource<'_> {
    /// Its path, or `image 3` for the bytes or pixels at place 3 of a list.
    pub(crate) fn name(&self, place: usize) -> String {
        match self {
            ImageSource::File(path) => path.display().to_string(),
            ImageSource::Bytes(_) | ImageSource::Pixels(_) => format!("image {place}"),
        }
    }

    /// Its pixels.
    ///
    /// # Errors
    /// It cannot be read, or is no image. An error about bytes names their `place` in a list.
    pub fn read(&self, place: usize, reading: ReadOptions) -> Result<Cow<'_, Image>, ImageError> {
        match self {
            ImageSource::File(path) => decode::open(path, reading).map(Cow::Owned),
            ImageSource::Bytes(bytes) => decode::open_bytes(bytes, || self.name(place), reading).map(Cow::Owned),
            ImageSource::Pixels(image) => Ok(Cow::Borrowed(image)),
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
    &'a Image => |image| ImageSource::Pixels(Cow::Borrowed(image));
    Image => |image| ImageSource::Pixels(Cow::Owned(image));
}
