//! The two central types: a picture, and a set of labelled pictures.

use std::io;

use crate::DataError;
use crate::refit::refit;

/// An RGB picture: rows from the top, three bytes per pixel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picture {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

impl Picture {
    /// A picture of `width` × `height` from its `width * height * 3` bytes.
    pub fn new(width: usize, height: usize, pixels: Vec<u8>) -> Result<Self, DataError> {
        match width.checked_mul(height).and_then(|n| n.checked_mul(3)) {
            Some(bytes) if bytes == pixels.len() && bytes > 0 => Ok(Picture { width, height, pixels }),
            Some(bytes) if bytes > 0 => Err(DataError::Setting(format!(
                "a picture of {width}x{height} RGB pixels has {bytes} bytes, not {}",
                pixels.len()
            ))),
            _ => Err(DataError::Setting(format!("there are no pictures of {width}x{height} pixels"))),
        }
    }

    /// Pixels per row; 0 only for `Picture::default()`.
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
    pub(crate) fn pixels_mut(&mut self) -> &mut [u8] {
        &mut self.pixels
    }

    /// Changes the dimensions, in the same memory where that fits; the caller overwrites every byte. Fails without memory, and
    /// leaves no picture then.
    pub(crate) fn reshape(&mut self, width: usize, height: usize) -> io::Result<&mut [u8]> {
        (self.width, self.height) = (0, 0);
        refit(&mut self.pixels, width * height * 3)?;
        (self.width, self.height) = (width, height);
        Ok(&mut self.pixels)
    }
}

/// A set of labelled pictures. An implementation needs three methods; the loader calls them from several threads.
pub trait Dataset: Send + Sync {
    /// Number of samples.
    fn len(&self) -> usize;

    /// The class of sample `index`, from 0. `index` is below [`len`](Dataset::len).
    fn label(&self, index: usize) -> usize;

    /// The picture of sample `index`. The same index must always give the same picture. A loader may skip a sample whose
    /// error is [`DataError::Picture`] or [`DataError::Read`] ([`DataError::is_unreadable`]); other errors end the run.
    fn read(&self, index: usize) -> Result<Picture, DataError>;

    /// [`read`](Dataset::read) into a picture whose memory is reused.
    fn read_into(&self, index: usize, picture: &mut Picture) -> Result<(), DataError> {
        *picture = self.read(index)?;
        Ok(())
    }

    /// The name of sample `index` in error messages: a path if there is one.
    fn name(&self, index: usize) -> String {
        format!("sample {index}")
    }

    /// Bytes that reading a picture takes at its peak, the picture itself among them, as far as a few samples tell. The
    /// default is for data that lie in memory.
    fn reading_bytes(&self) -> usize {
        0
    }

    /// Names of the classes. The default is the numbers up to the largest label.
    fn class_names(&self) -> Vec<String> {
        let count = (0..self.len()).map(|index| self.label(index) + 1).max().unwrap_or(0);
        (0..count).map(|class| class.to_string()).collect()
    }

    /// Whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
