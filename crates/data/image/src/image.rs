//! An image: its dimensions and its pixels, RGB bytes `[height, width, 3]`.

use std::io;

use enmasse_system::files::reuse;

use crate::ImageError;

/// An RGB image: rows from the top, three bytes per pixel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

impl Image {
    /// An image of `width` × `height` from its `width * height * 3` bytes.
    ///
    /// # Errors
    /// There are not that many bytes, or the image would have no pixels.
    pub fn new(width: usize, height: usize, pixels: Vec<u8>) -> Result<Self, ImageError> {
        match width.checked_mul(height).and_then(|n| n.checked_mul(3)) {
            Some(bytes) if bytes == pixels.len() && bytes > 0 => Ok(Image { width, height, pixels }),
            Some(bytes) if bytes > 0 => Err(ImageError::Setting(format!(
                "an image of {width}x{height} RGB pixels has {bytes} bytes, not {}",
                pixels.len()
            ))),
            _ => Err(ImageError::Setting(format!("there are no images of {width}x{height} pixels"))),
        }
    }

    /// Pixels per row; 0 only for `Image::default()`.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Number of rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// The bytes, `[height, width, 3]`.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// The bytes, for writing.
    pub fn pixels_mut(&mut self) -> &mut [u8] {
        &mut self.pixels
    }

    /// Changes the dimensions, in the same memory where that fits. The caller overwrites every byte.
    ///
    /// # Errors
    /// There is no memory for it. It leaves no image then.
    pub fn reshape(&mut self, width: usize, height: usize) -> io::Result<&mut [u8]> {
        (self.width, self.height) = (0, 0);
        reuse(&mut self.pixels, width * height * 3)?;
        (self.width, self.height) = (width, height);
        Ok(&mut self.pixels)
    }
}
