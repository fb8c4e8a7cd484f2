//! A part of a picture: what a loader reads of one whose crop is known before it is decoded.

use crate::{CropBox, Picture};

/// What is needed of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The pixels that have an influence.
    pub part: CropBox,
    /// 1, or the edge of the squares of pixels that may be given as one: 2, 4 or 8.
    pub shrink: usize,
}

impl Wanted {
    /// All of a picture of `width` × `height`.
    pub fn whole(width: usize, height: usize) -> Self {
        Wanted { part: CropBox::whole(width, height), shrink: 1 }
    }
}

/// A part of a picture, or all of it, perhaps with one pixel for each square of them. Its memory is reused.
#[derive(Debug, Default)]
pub struct View {
    pub(crate) picture: Picture,
    /// Pixels of the picture that it is a part of.
    pub(crate) width: usize,
    pub(crate) height: usize,
    /// Columns to the left of the part and rows above it, in pixels of the shrunk picture.
    pub(crate) left: usize,
    pub(crate) top: usize,
    /// Edge of the squares.
    pub(crate) shrink: usize,
    /// Pillow's name of the mode of a file that is not RGB.
    pub(crate) mode: Option<&'static str>,
    pub(crate) decoder: enmasse_jpeg::Decoder,
    /// A picture file from a container.
    file: Vec<u8>,
}

impl View {
    /// Shows the whole picture that `read` reads.
    pub fn whole<E>(&mut self, read: impl FnOnce(&mut Picture) -> Result<(), E>) -> Result<(), E> {
        self.mode = None;
        read(&mut self.picture)?;
        self.is_whole();
        Ok(())
    }

    /// Lends `read` the memory for a picture file.
    pub(crate) fn with_file<T>(&mut self, read: impl FnOnce(&mut Vec<u8>, &mut View) -> T) -> T {
        let mut file = std::mem::take(&mut self.file);
        let result = read(&mut file, self);
        self.file = file;
        result
    }

    /// The pixels that were read: of a whole picture all of them.
    pub fn picture(&self) -> &Picture {
        &self.picture
    }

    /// Pillow's name of the mode of the image's file, such as `L (grayscale)`, if the pixels were converted to RGB from another one.
    pub fn converted_from(&self) -> Option<&'static str> {
        self.mode
    }

    /// Notes that `picture` is a whole picture.
    pub(crate) fn is_whole(&mut self) {
        (self.width, self.height) = (self.picture.width(), self.picture.height());
        (self.left, self.top, self.shrink) = (0, 0, 1);
    }
}
