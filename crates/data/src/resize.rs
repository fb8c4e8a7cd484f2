//! Antialiased bilinear resize of RGB pictures, as Pillow and torchvision do it: at most one level apart.

use fast_image_resize as fir;
use fir::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fir::pixels::U8x3;

use crate::{CropBox, Picture};

/// Resizes pictures; keeps its scratch memory between calls.
#[derive(Default)]
pub struct Resizer {
    inner: fir::Resizer,
    pub(crate) scratch: Vec<u8>,
}

impl Resizer {
    /// A resizer without scratch memory yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Crops `from` to `crop` and resizes that to `width` × `height` into `out` (`width * height * 3` bytes).
    ///
    /// As in Pillow, pixels outside the crop do not leak in, and an axis that keeps its length is copied exactly.
    ///
    /// # Panics
    /// If `crop` leaves the picture, or `out` has another length.
    pub fn resize(&mut self, from: &Picture, crop: CropBox, width: usize, height: usize, out: &mut [u8]) {
        self.resize_part(from, crop, (width, height), CropBox::whole(width, height), out);
    }

    /// What [`resize`](Resizer::resize) of `crop` to the dimensions `full` would give in the rectangle `part`, without
    /// computing the rest. `out` has `part.width * part.height * 3` bytes.
    ///
    /// # Panics
    /// If `crop` leaves the picture, `part` leaves `full`, or `out` has another length.
    pub fn resize_part(&mut self, from: &Picture, crop: CropBox, full: (usize, usize), part: CropBox, out: &mut [u8]) {
        assert!(crop.fits(from.width(), from.height()), "{crop:?} leaves {}x{}", from.width(), from.height());
        assert!(part.fits(full.0, full.1), "{part:?} leaves {full:?}");
        assert_eq!(out.len(), part.width * part.height * 3);
        let (left, width) = source_range(crop.width, full.0, part.left, part.width);
        let (top, height) = source_range(crop.height, full.1, part.top, part.height);
        let options = fir::ResizeOptions::new()
            .resize_alg(fir::ResizeAlg::Convolution(fir::FilterType::Bilinear))
            .crop(left, top, width, height);
        let [w, h] = [from.width(), from.height()].map(|length| length as u32);
        let resized = TypedImageRef::<U8x3>::from_buffer(w, h, from.pixels()).ok().and_then(|source| {
            let [left, top, w, h] = [crop.left, crop.top, crop.width, crop.height].map(|length| length as u32);
            let source = TypedCroppedImage::from_ref(&source, left, top, w, h).ok()?;
            let mut target = TypedImage::<U8x3>::from_buffer(part.width as u32, part.height as u32, out).ok()?;
            self.inner.resize_typed(&source, &mut target, &options).ok()
        });
        assert!(resized.is_some(), "resize of {crop:?} to {part:?} of {full:?}");
    }
}

/// Where `part` pixels from `start` on, of `source` pixels resized to `full`, come from.
fn source_range(source: usize, full: usize, start: usize, part: usize) -> (f64, f64) {
    let at = |position: usize| (position * source) as f64 / full as f64;
    let from = at(start);
    // Rounding must not carry the end past the source.
    (from, (at(start + part) - from).min(source as f64 - from))
}
