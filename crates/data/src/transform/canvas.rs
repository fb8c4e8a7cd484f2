//! The working state of transforms: one picture, and the memory for making the next one from it.

use crate::{CropBox, Picture, Resizer};

/// A picture that transforms change one after the other. Its memory is reused for every sample.
///
/// ```
/// use enmasse_data::{Canvas, Picture};
/// let mut canvas = Canvas::new(Picture::new(1, 1, vec![10, 20, 30])?);
/// canvas.pixels_mut()[0] = 11;
/// canvas.replace(2, 1, |before, _, after| after[3..].copy_from_slice(before.pixels()));
/// assert_eq!(canvas.picture().pixels(), [0, 0, 0, 11, 20, 30]);
/// # Ok::<(), enmasse_data::DataError>(())
/// ```
#[derive(Default)]
pub struct Canvas {
    /// Samples are read into the first one, so only that one grows to their size.
    pictures: [Picture; 2],
    second: bool,
    resizer: Resizer,
}

impl Canvas {
    /// A canvas that shows `picture`.
    pub fn new(picture: Picture) -> Self {
        Canvas { pictures: [picture, Picture::default()], ..Canvas::default() }
    }

    /// The current picture.
    pub fn picture(&self) -> &Picture {
        &self.pictures[usize::from(self.second)]
    }

    /// The bytes, `[height, width, 3]`, to change in place.
    pub fn pixels_mut(&mut self) -> &mut [u8] {
        self.pictures[usize::from(self.second)].pixels_mut()
    }

    /// Replaces the picture by one of `width` × `height`, which `paint` makes from the previous one. Before that it is
    /// black: it contains nothing of earlier samples.
    ///
    /// # Panics
    /// If there is no memory for it. A loader makes an error of that, which names the sample.
    pub fn replace(&mut self, width: usize, height: usize, paint: impl FnOnce(&Picture, &mut Resizer, &mut [u8])) {
        let [first, second] = &mut self.pictures;
        let (before, after) = if self.second { (second, first) } else { (first, second) };
        let pixels = after.reshape(width, height).unwrap_or_else(|error| panic!("{error}"));
        pixels.fill(0);
        paint(before, &mut self.resizer, pixels);
        self.second = !self.second;
    }

    /// Cuts out `part` and resizes it to `width` × `height`, as [`Resizer::resize`] does.
    ///
    /// # Panics
    /// If `part` leaves the picture, or without memory.
    pub fn resize(&mut self, part: CropBox, width: usize, height: usize) {
        self.replace(width, height, |before, resizer, after| resizer.resize(before, part, width, height, after));
    }

    /// The picture into which the next sample is read.
    pub(crate) fn restart(&mut self) -> &mut Picture {
        self.second = false;
        &mut self.pictures[0]
    }
}
