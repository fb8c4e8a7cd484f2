//! torchvision's Resize and CenterCrop, for evaluation, the crops of its FiveCrop and TenCrop, and the views of airbench.

use enmasse_tensor::RandomStream;
use serde::{Deserialize, Serialize};

use super::color::rgb_to_grayscale;
use super::crop::reflected;
use super::{check_size, interpolation};
use crate::flip_rows::flip_rows;
use crate::{
    Canvas, CropBox, CropResize, Image, ImageError, ImageRegion, RegionRequest, Resampling, Resizer, Transform,
};

/// For evaluation: Resize of the shorter side, then CenterCrop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvalTransform {
    /// Edge of the square result, in pixels.
    pub size: usize,
    /// Length to which the image's shorter side is resized.
    pub resize: usize,
    /// Whether the result is grey, as by [`Grayscale`](crate::Grayscale).
    pub grayscale: bool,
    /// The filter of the resize.
    pub resampling: Resampling,
}

impl EvalTransform {
    /// The usual proportion: the shorter side becomes round(size · 256 / 224).
    pub fn new(size: usize) -> Self {
        let resize = (size as f64 * 256.0 / 224.0).round() as usize;
        EvalTransform { size, resize, grayscale: false, resampling: Resampling::Bilinear }
    }

    /// The same with another proportion: the crop takes the share `crop_pct` of the shorter side, whose length is rounded down as by timm.
    pub fn cropped(self, crop_pct: f64) -> Self {
        // A length that is a quotient of two whole numbers comes out exactly.
        const ROUNDING: f64 = 1e-6;
        EvalTransform { resize: (self.size as f64 / crop_pct + ROUNDING) as usize, ..self }
    }

    /// Dimensions after Resize: the longer side is truncated to a whole number, as in torchvision.
    pub fn resized(&self, width: usize, height: usize) -> (usize, usize) {
        let short = width.min(height).max(1);
        let long = width.max(height);
        let long = (self.resize * long) as f64 / short as f64;
        if width <= height { (self.resize, long as usize) } else { (long as usize, self.resize) }
    }

    /// Where CenterCrop begins along a side of `length` pixels; negative if it must pad with black.
    fn crop_start(&self, length: usize) -> isize {
        let length = length as isize;
        let size = self.size as isize;
        if length < size {
            // Padding puts the odd pixel at the end.
            return -((size - length) / 2);
        }
        ((length - size) as f64 / 2.0).round_ties_even() as isize
    }

    /// What it does to an image of `width` × `height` before it adds black margins.
    fn cut(&self, crop: EvalCrop, width: usize, height: usize) -> CropResize {
        let full = self.resized(width, height);
        let start = |length: usize, end: Option<End>| match end {
            None => self.crop_start(length).max(0) as usize,
            Some(End::First) => 0,
            Some(End::Last) => length.saturating_sub(self.size),
        };
        let (mut left, top) = (start(full.0, crop.across), start(full.1, crop.down));
        let width_of_part = self.size.min(full.0);
        if crop.flipped {
            left = full.0 - width_of_part - left;
        }
        let part = CropBox { left, top, width: width_of_part, height: self.size.min(full.1) };
        CropResize { crop: CropBox::whole(width, height), full, part, resampling: self.resampling }
    }

    /// The same if there are no margins.
    fn without_margins(&self, crop: EvalCrop, width: usize, height: usize) -> Option<CropResize> {
        Some(self.cut(crop, width, height)).filter(|cut| (cut.part.width, cut.part.height) == (self.size, self.size))
    }

    /// What is needed of an image of `width` × `height` for one of its crops, at full size.
    pub fn wanted(&self, crop: EvalCrop, width: usize, height: usize) -> RegionRequest {
        match self.without_margins(crop, width, height) {
            Some(crop_resize) => RegionRequest { shrink: 1, ..crop_resize.wanted() },
            None => RegionRequest::whole(width, height),
        }
    }

    /// Writes one crop of the image of `view` to `out`. The region holds at least what is [`wanted`](Self::wanted).
    ///
    /// # Errors
    /// The transform leaves other dimensions than those of a crop. `out` is as before then.
    pub fn apply_to_region(
        &self,
        view: &mut ImageRegion,
        canvas: &mut Canvas,
        crop: EvalCrop,
        out: &mut [u8],
    ) -> Result<(), ImageError> {
        if let Some(crop_resize) = self.without_margins(crop, view.width, view.height) {
            let is_shifted = crop.shift != 0;
            canvas.crop_resize_to(view, (&crop_resize, crop.flipped && !is_shifted), out);
            if is_shifted {
                let before = out.to_vec();
                reflected(&before, self.size, [isize::from(crop.shift); 2], out);
                if crop.flipped {
                    flip_rows(out, self.size * 3);
                }
            }
            self.finish(out);
            return Ok(());
        }
        // With margins, which only the middle has.
        canvas.take(view);
        self.show(canvas);
        let result = canvas.copy_square(self.size, out);
        canvas.give_back(view);
        result
    }

    /// Checks that all images have such a crop.
    ///
    /// # Errors
    /// Some images do not have it: they are resized to less than a crop, or it is shifted out of them.
    pub fn check_crop(&self, crop: EvalCrop) -> Result<(), ImageError> {
        let is_shifted_away = crop.shift.unsigned_abs() as usize >= self.size;
        if crop == EvalCrop::CENTER || (self.resize >= self.size && !is_shifted_away) {
            return Ok(());
        }
        Err(ImageError::Setting(format!(
            "images whose shorter side is resized to {} pixels have no crops of {} in their corners; take the middle alone",
            self.resize, self.size
        )))
    }

    /// Resizes and crops `image` into `out` (`size * size * 3` bytes). Only the cropped part is computed.
    pub fn fit(&self, image: &Image, resizer: &mut Resizer, out: &mut [u8]) {
        let crop_resize @ CropResize { full, part, .. } = self.cut(EvalCrop::CENTER, image.width(), image.height());
        if (part.width, part.height) == (self.size, self.size) {
            resizer.resize_part(image, &crop_resize, out);
            return self.finish(out);
        }
        let mut unpadded = std::mem::take(&mut resizer.unpadded);
        unpadded.resize(part.width * part.height * 3, 0);
        resizer.resize_part(image, &crop_resize, &mut unpadded);
        out.fill(0);
        let margin = |length: usize| (-self.crop_start(length)).max(0) as usize;
        let rows = out.chunks_exact_mut(self.size * 3).skip(margin(full.1));
        for (row, source) in rows.zip(unpadded.chunks_exact(part.width * 3)) {
            row[margin(full.0) * 3..][..source.len()].copy_from_slice(source);
        }
        resizer.unpadded = unpadded;
        self.finish(out);
    }

    /// What follows the crop.
    fn finish(&self, out: &mut [u8]) {
        if self.grayscale {
            rgb_to_grayscale(out);
        }
    }

    /// The same on a canvas.
    pub(super) fn show(&self, canvas: &mut Canvas) {
        canvas.replace(self.size, self.size, |before, resizer, after| self.fit(before, resizer, after));
    }
}

/// Which square of a resized image is evaluated.
///
/// ```
/// use enmasse_image::EvalCrop;
///
/// assert_eq!(EvalCrop::several(1), Some(vec![EvalCrop::CENTER]));
/// assert_eq!(EvalCrop::several(10).map(|crops| crops.len()), Some(10));
/// assert_eq!(EvalCrop::several(3), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvalCrop {
    /// At the left or the right; `None` for the middle.
    across: Option<End>,
    /// At the top or the bottom.
    down: Option<End>,
    /// Whether the image is flipped left to right before, or after a shift.
    flipped: bool,
    /// How many pixels to the right and down of this square it begins. What lies beyond the square is mirrored.
    shift: i8,
    /// Its part in a mean, relative to the others.
    weight: u8,
}

/// Of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    First,
    Last,
}

impl EvalCrop {
    /// The middle, as CenterCrop takes it.
    pub const CENTER: EvalCrop = EvalCrop { across: None, down: None, flipped: false, shift: 0, weight: 1 };

    /// The middle alone, torchvision's FiveCrop (the corners and the middle), or its TenCrop (the same of the flipped image, too), in
    /// torchvision's order. `None` for other numbers.
    pub fn several(count: usize) -> Option<Vec<EvalCrop>> {
        let corner = |down: End, across: End| EvalCrop { across: Some(across), down: Some(down), ..EvalCrop::CENTER };
        let (first, last) = (End::First, End::Last);
        let corners = [corner(first, first), corner(first, last), corner(last, first), corner(last, last)];
        let five = corners.into_iter().chain([EvalCrop::CENTER]);
        match count {
            1 => Some(vec![EvalCrop::CENTER]),
            5 => Some(five.collect()),
            10 => Some(five.clone().chain(five.map(EvalCrop::mirrored)).collect()),
            _ => None,
        }
    }

    /// The middle and its mirror image (`flip`), or these and both shifted by a pixel, up to the left and down to the right, which
    /// together count as much (`flip+shift`): the test-time augmentation of airbench. `None` for other words.
    pub fn views(word: &str) -> Option<Vec<EvalCrop>> {
        let both = |crop: EvalCrop| [crop, crop.mirrored()];
        let shifted = |shift: i8| both(EvalCrop { shift, ..EvalCrop::CENTER });
        match word {
            "flip" => Some(both(EvalCrop::CENTER).to_vec()),
            "flip+shift" => {
                let middle = both(EvalCrop { weight: 2, ..EvalCrop::CENTER });
                Some([middle, shifted(-1), shifted(1)].concat())
            }
            _ => None,
        }
    }

    fn mirrored(self) -> Self {
        EvalCrop { flipped: true, ..self }
    }

    /// Its part in the mean of the logits, relative to the others.
    pub fn weight(&self) -> f64 {
        f64::from(self.weight)
    }
}

/// Also a step of training without random crops.
impl Transform for EvalTransform {
    fn name(&self) -> &str {
        "resize_center_crop"
    }

    fn parameters(&self) -> String {
        let grayscale = if self.grayscale { " grayscale" } else { "" };
        format!("size={} resize={}{grayscale}{}", self.size, self.resize, interpolation(self.resampling))
    }

    fn check(&self) -> Result<(), ImageError> {
        check_size(self.size).and_then(|()| check_size(self.resize))
    }

    fn crop_resize(&self, _: &mut RandomStream, width: usize, height: usize) -> Option<CropResize> {
        if self.grayscale { None } else { self.without_margins(EvalCrop::CENTER, width, height) }
    }

    fn apply(&self, canvas: &mut Canvas, _: &mut RandomStream) {
        self.show(canvas);
    }
}
