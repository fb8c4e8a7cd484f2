//! A part of an image: what a loader reads of one whose crop is known before it is decoded.
//!
//! The first transform of a list may say what it cuts out of an image, given its dimensions
//! (`Transform::crop_resize`): a pure function of (seed, epoch, sample). The loader hands that to
//! the data set (`Locality::read_part`), and a JPEG is decoded only where the part needs it.
//! Entropy-coded data before the part are skipped, and data below it are not read. The pixels are
//! those of the whole image.
//!
//! For training a part may also be decoded at 1/2, 1/4 or 1/8 of its size, while it keeps as many
//! pixels as the transform makes of it in both directions (`--decode fast`). `--decode exact`
//! leaves that out. Validation, `eval` and `predict` always decode at full size.

use std::io;
use std::ops::Range;

use crate::{CropBox, Image};

/// What is needed of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionRequest {
    /// The pixels that have an influence.
    pub part: CropBox,
    /// 1, or the edge of the squares of pixels that may be given as one: 2, 4 or 8.
    pub shrink: usize,
}

impl RegionRequest {
    /// All of an image of `width` × `height`.
    pub fn whole(width: usize, height: usize) -> Self {
        RegionRequest { part: CropBox::whole(width, height), shrink: 1 }
    }
}

/// A part of an image, or all of it, perhaps with one pixel for each square of them. Its memory is reused.
#[derive(Debug, Default)]
pub struct ImageRegion {
    pub(crate) image: Image,
    /// Pixels of the image that it is a part of.
    pub(crate) width: usize,
    pub(crate) height: usize,
    /// Columns to the left of the part and rows above it, in pixels of the shrunk image.
    pub(crate) left: usize,
    pub(crate) top: usize,
    /// Edge of the squares.
    pub(crate) shrink: usize,
    /// Pillow's name of the mode of a file that is not RGB.
    pub(crate) mode: Option<&'static str>,
    pub(crate) decoder: enmasse_jpeg::Decoder,
    /// An image file from a container.
    file: Vec<u8>,
}

impl ImageRegion {
    /// Shows the whole image that `read` reads.
    ///
    /// # Errors
    /// That of `read`.
    pub fn whole<E>(&mut self, read: impl FnOnce(&mut Image) -> Result<(), E>) -> Result<(), E> {
        self.mode = None;
        read(&mut self.image)?;
        self.is_whole();
        Ok(())
    }

    /// Calls `read` with memory for an image file, whose content does not count.
    pub fn with_file<T>(&mut self, read: impl FnOnce(&mut Vec<u8>, &mut ImageRegion) -> T) -> T {
        let mut file = std::mem::take(&mut self.file);
        let result = read(&mut file, self);
        self.file = file;
        result
    }

    /// Shows `rows` of an image of `width` × `height`. The caller overwrites their bytes, three for each pixel.
    ///
    /// # Errors
    /// There is no memory for them. It leaves no image then.
    pub fn show_rows(&mut self, (width, height): (usize, usize), rows: Range<usize>) -> io::Result<&mut [u8]> {
        (self.width, self.height, self.left, self.top, self.shrink) = (width, height, 0, rows.start, 1);
        self.mode = None;
        self.image.reshape(width, rows.len())
    }

    /// The pixels that were read, without the memory for others.
    pub fn into_image(self) -> Image {
        self.image
    }

    /// The pixels that were read: of a whole image all of them.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Pillow's name of the mode of the image's file, such as `L (grayscale)`, if the pixels were converted to RGB from another one.
    pub fn converted_from(&self) -> Option<&'static str> {
        self.mode
    }

    /// Notes that `image` is a whole image.
    pub(crate) fn is_whole(&mut self) {
        (self.width, self.height) = (self.image.width(), self.image.height());
        (self.left, self.top, self.shrink) = (0, 0, 1);
    }
}
