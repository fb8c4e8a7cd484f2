//! Antialiased bilinear or bicubic resize of RGB images: Pillow's algorithm with the same bits, which torchvision also uses.
//!
//! Two passes, along rows and across them, each rounded to bytes; weights are fixed-point numbers of 22 bits and a sign. Pillow
//! does the same (`Resample.c`), so rounding cannot differ.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod pairs;
mod pass;
mod passes;
mod plain;
mod resampling;
mod taps;

use pass::Pass;
use passes::Passes;
use taps::{Axis, Taps};

use crate::{CropBox, CropResize, Image, ImageRegion};
use enmasse_system::files::reuse;

pub use resampling::Resampling;
pub(crate) use taps::span;

/// Fractional bits of a weight: a sum of byte · weight stays between -2^31 and 2^31.
const BITS: u32 = 22;
const HALF: i32 = 1 << (BITS - 1);

/// Resizes images; keeps its scratch memory between calls.
#[derive(Default)]
pub struct Resizer {
    /// The result of the first pass.
    between: Vec<u8>,
    columns: Taps,
    rows: Taps,
    passes: Passes,
    /// An image that is padded afterwards.
    pub(crate) unpadded: Vec<u8>,
}

impl Resizer {
    /// A resizer without scratch memory so far.
    pub fn new() -> Self {
        Self::default()
    }

    /// A resizer that uses the kernels of a level.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn at(level: enmasse_system::simd::SimdLevel) -> Self {
        Resizer { passes: Passes::at(level), ..Self::default() }
    }

    /// Crops `from` to `crop` and resizes that bilinearly to `width` × `height` into `out` (`width * height * 3` bytes).
    ///
    /// As in Pillow, pixels outside the crop have no influence, and an axis that keeps its length is copied exactly.
    ///
    /// # Panics
    /// If `crop` leaves the image, `out` has another length, or without memory.
    pub fn resize(&mut self, from: &Image, crop: CropBox, width: usize, height: usize, out: &mut [u8]) {
        self.resize_part(from, &CropResize::whole(crop, (width, height), Resampling::Bilinear), out);
    }

    /// The result of `crop_resize` for an image, in `out` (three bytes for each pixel of its part). The rest is not computed.
    ///
    /// # Panics
    /// If the crop leaves the image, the part leaves the resized crop, `out` has another length, or without memory.
    pub fn resize_part(&mut self, from: &Image, crop_resize: &CropResize, out: &mut [u8]) {
        let CropResize { crop, .. } = crop_resize;
        assert!(crop.fits(from.width(), from.height()), "{crop:?} leaves {}x{}", from.width(), from.height());
        self.exactly(from, (0, 0), crop_resize, out);
    }

    /// The result of `crop_resize` for the image of which `view` holds what is needed, in `out` (three bytes for each pixel of its
    /// part).
    ///
    /// # Panics
    /// If the region leaves the image, `out` has another length, or without memory.
    pub fn crop_resize(&mut self, view: &ImageRegion, crop_resize: &CropResize, out: &mut [u8]) {
        if view.shrink == 1 {
            return self.exactly(&view.image, (view.left, view.top), crop_resize, out);
        }
        // The crop has edges between the pixels of the shrunk image. Beyond these pixels nothing has an influence.
        let CropResize { crop, full, part, resampling } = *crop_resize;
        let shrunk = |length: usize| length as f64 / view.shrink as f64;
        let axis = |start: usize, length: usize, skipped: usize, limit: usize, full: usize| Axis {
            from: shrunk(start) - skipped as f64,
            length: shrunk(length),
            limit,
            full,
            resampling,
        };
        let columns = axis(crop.left, crop.width, view.left, view.image.width(), full.0);
        let rows = axis(crop.top, crop.height, view.top, view.image.height(), full.1);
        self.columns.compute(&columns, part.left, part.width);
        self.rows.compute(&rows, part.top, part.height);
        let order = vertical_first((crop.width / view.shrink, crop.height / view.shrink), full);
        self.passes(&view.image, self.columns.span().0, self.rows.span().0, order, part, out);
    }

    /// The result of `crop_resize` for an image of which `from` lacks columns on the left and rows above.
    fn exactly(&mut self, from: &Image, lacking: (usize, usize), crop_resize: &CropResize, out: &mut [u8]) {
        let CropResize { crop, full, part, resampling } = *crop_resize;
        assert!(part.fits(full.0, full.1), "{part:?} leaves {full:?}");
        self.columns.compute(&Axis::whole(crop.width, full.0, resampling), part.left, part.width);
        self.rows.compute(&Axis::whole(crop.height, full.1, resampling), part.top, part.height);
        let left = crop.left + self.columns.span().0 - lacking.0;
        let top = crop.top + self.rows.span().0 - lacking.1;
        self.passes(from, left, top, vertical_first((crop.width, crop.height), full), part, out);
    }

    /// Both passes, from the pixels of `from` right of `left` and below `top`.
    fn passes(&mut self, from: &Image, left: usize, top: usize, vertical_first: bool, part: CropBox, out: &mut [u8]) {
        assert_eq!(out.len(), part.width * part.height * 3);
        let (first_column, end_column) = self.columns.span();
        let (first_row, end_row) = self.rows.span();
        let stride = from.width() * 3;
        let source = &from.pixels()[top * stride + left * 3..];
        let (columns, rows) = (&self.columns, &self.rows);
        let width = part.width * 3;
        if vertical_first {
            let row_bytes = (end_column - first_column) * 3;
            let between = refitted(&mut self.between, part.height * row_bytes);
            self.passes.vertical(&Pass { from: source, stride, taps: rows, row_bytes }, between);
            self.passes.horizontal(&Pass { from: between, stride: row_bytes, taps: columns, row_bytes: width }, out);
        } else {
            let between = refitted(&mut self.between, (end_row - first_row) * width);
            self.passes.horizontal(&Pass { from: source, stride, taps: columns, row_bytes: width }, between);
            self.passes.vertical(&Pass { from: between, stride: width, taps: rows, row_bytes: width }, out);
        }
    }
}

/// The buffer with this length.
fn refitted(buffer: &mut Vec<u8>, length: usize) -> &mut [u8] {
    reuse(buffer, length).unwrap_or_else(|error| panic!("{error}"));
    buffer
}

/// The order of the passes makes a difference of up to two levels. Since version 13 Pillow runs the pass across rows
/// first if that saves much; earlier versions never do.
fn vertical_first(crop: (usize, usize), full: (usize, usize)) -> bool {
    let saved = |source: usize, target: usize| source as i64 - target as i64;
    saved(crop.1, full.1) > (2 * saved(crop.0, full.0)).max(0)
}

#[cfg(test)]
mod tests {
    use enmasse_system::simd::SimdLevel;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Lengths from below a vector up, and every number of taps for which there is code of its own.
        #[test]
        fn levels_agree(
            (width, height) in (1usize..260, 1usize..40),
            (to_width, to_height) in (1usize..120, 1usize..40),
            (left, right) in (0usize..120, 0usize..120),
            bytes in prop::collection::vec(any::<u8>(), 260 * 3),
            bicubic: bool,
        ) {
            let pixels = bytes.iter().cycle().enumerate().map(|(at, &byte)| byte ^ (at / 780) as u8);
            let image = Image::new(width, height, pixels.take(width * height * 3).collect()).unwrap();
            let left = left % to_width;
            let part = CropBox { left, top: 0, width: 1 + right % (to_width - left), height: to_height };
            let crop = CropBox::whole(width, height);
            let resampling = if bicubic { Resampling::Bicubic } else { Resampling::Bilinear };
            let crop_resize = CropResize { crop, full: (to_width, to_height), part, resampling };
            let run = |level: SimdLevel| {
                let mut out = vec![0; part.width * part.height * 3];
                Resizer::at(level).resize_part(&image, &crop_resize, &mut out);
                out
            };
            let plain = run(SimdLevel::Plain);
            for level in SimdLevel::all() {
                prop_assert!(run(level) == plain, "{:?}", level);
            }
        }
    }
}
