//! The working state of transforms: one image, and the memory for making the next one from it.

use crate::flip_rows::flip_rows;
use crate::{CropBox, CropResize, Image, ImageError, ImageRegion, Resizer};

/// An image that transforms change one after the other. Its memory is reused for every sample.
///
/// ```
/// use enmasse_image::{Canvas, Image};
/// let mut canvas = Canvas::new(Image::new(1, 1, vec![10, 20, 30])?);
/// canvas.pixels_mut()[0] = 11;
/// canvas.replace(2, 1, |before, _, after| after[3..].copy_from_slice(before.pixels()));
/// assert_eq!(canvas.image().pixels(), [0, 0, 0, 11, 20, 30]);
/// # Ok::<(), enmasse_image::ImageError>(())
/// ```
#[derive(Default)]
pub struct Canvas {
    /// A whole image is exchanged with the first one, so only that one grows to its size.
    images: [Image; 2],
    second: bool,
    /// Whether the first one is that of a view, which gets it back before the next sample.
    taken: bool,
    resizer: Resizer,
    /// What a transform computes in between, and keeps of the image that it changes.
    pub(super) floats: Vec<f32>,
    pub(super) kept: Vec<u8>,
}

impl Canvas {
    /// A canvas that shows `image`.
    pub fn new(image: Image) -> Self {
        Canvas { images: [image, Image::default()], ..Canvas::default() }
    }

    /// The current image.
    pub fn image(&self) -> &Image {
        &self.images[usize::from(self.second)]
    }

    /// The bytes, `[height, width, 3]`, to change in place.
    pub fn pixels_mut(&mut self) -> &mut [u8] {
        self.images[usize::from(self.second)].pixels_mut()
    }

    /// Replaces the image by one of `width` × `height`, which `paint` makes from the previous one. Before that it is
    /// black: it contains nothing of earlier samples.
    ///
    /// # Panics
    /// If there is no memory for it. A loader makes an error of that, which names the sample.
    pub fn replace(&mut self, width: usize, height: usize, paint: impl FnOnce(&Image, &mut Resizer, &mut [u8])) {
        let [first, second] = &mut self.images;
        let (before, after) = if self.second { (second, first) } else { (first, second) };
        let pixels = after.reshape(width, height).unwrap_or_else(|error| panic!("{error}"));
        pixels.fill(0);
        paint(before, &mut self.resizer, pixels);
        self.second = !self.second;
    }

    /// Cuts out `part` and resizes it to `width` × `height`, as [`Resizer::resize`] does.
    ///
    /// # Panics
    /// If `part` leaves the image, or without memory.
    pub fn resize(&mut self, part: CropBox, width: usize, height: usize) {
        self.replace(width, height, |before, resizer, after| resizer.resize(before, part, width, height, after));
    }

    /// Shows the whole image of `view`, until [`give_back`](Self::give_back).
    pub(crate) fn take(&mut self, view: &mut ImageRegion) {
        std::mem::swap(&mut self.images[0], &mut view.image);
        (self.second, self.taken) = (false, true);
    }

    /// Gives `view` its memory back, for the next sample: otherwise there would be two images of a sample's size.
    pub(crate) fn give_back(&mut self, view: &mut ImageRegion) {
        if std::mem::take(&mut self.taken) {
            std::mem::swap(&mut self.images[0], &mut view.image);
        }
    }

    /// Copies the image to `out`, a square of `size` pixels. Fails if it has other dimensions.
    pub(crate) fn copy_square(&self, size: usize, out: &mut [u8]) -> Result<(), ImageError> {
        let (width, height) = (self.image().width(), self.image().height());
        if (width, height) != (size, size) {
            let problem = format!("the transforms leave {width}x{height} pixels instead of {size}x{size}");
            return Err(ImageError::Setting(problem));
        }
        out.copy_from_slice(self.image().pixels());
        Ok(())
    }

    /// Makes `out` the result of `crop_resize` of the image that `view` holds the needed part of, flipped if so asked. What the canvas
    /// shows stays.
    pub(crate) fn crop_resize_to(
        &mut self,
        view: &ImageRegion,
        (crop_resize, flipped): (&CropResize, bool),
        out: &mut [u8],
    ) {
        self.resizer.crop_resize(view, crop_resize, out);
        if flipped {
            flip_rows(out, crop_resize.part.width * 3);
        }
    }

    /// Shows the result of `crop_resize` of the image that `view` holds the needed part of.
    pub(crate) fn crop_resize(&mut self, view: &ImageRegion, crop_resize: &CropResize) {
        self.second = false;
        let (width, height) = (crop_resize.part.width, crop_resize.part.height);
        let pixels = self.images[0].reshape(width, height).unwrap_or_else(|error| panic!("{error}"));
        self.resizer.crop_resize(view, crop_resize, pixels);
    }
}
