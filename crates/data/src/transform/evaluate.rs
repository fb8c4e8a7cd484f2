//! torchvision's Resize and CenterCrop, for evaluation.

use enmasse_tensor::RandomStream;
use serde::{Deserialize, Serialize};

use super::check_size;
use crate::{Canvas, CropBox, DataError, Picture, Resizer, Stretch, Transform};

/// For evaluation: Resize of the shorter side, then CenterCrop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvalTransform {
    /// Edge of the square result, in pixels.
    pub size: usize,
    /// Length to which the picture's shorter side is resized.
    pub resize: usize,
}

impl EvalTransform {
    /// The usual proportion: the shorter side becomes round(size · 256 / 224).
    pub fn new(size: usize) -> Self {
        EvalTransform { size, resize: (size as f64 * 256.0 / 224.0).round() as usize }
    }

    /// Dimensions after Resize: the longer side is truncated to a whole number, as in torchvision.
    pub(crate) fn resized(&self, width: usize, height: usize) -> (usize, usize) {
        let (short, long) = (width.min(height).max(1), width.max(height));
        let long = (self.resize * long) as f64 / short as f64;
        if width <= height { (self.resize, long as usize) } else { (long as usize, self.resize) }
    }

    /// Where CenterCrop begins along a side of `length` pixels; negative if it must pad with black.
    fn crop_start(&self, length: usize) -> isize {
        let (length, size) = (length as isize, self.size as isize);
        if length < size {
            // Padding puts the odd pixel at the end.
            return -((size - length) / 2);
        }
        ((length - size) as f64 / 2.0).round_ties_even() as isize
    }

    /// What it does to a picture of `width` × `height` before it adds black margins.
    fn cut(&self, width: usize, height: usize) -> Stretch {
        let full = self.resized(width, height);
        let start = |length: usize| self.crop_start(length).max(0) as usize;
        let part = CropBox {
            left: start(full.0),
            top: start(full.1),
            width: self.size.min(full.0),
            height: self.size.min(full.1),
        };
        Stretch { crop: CropBox::whole(width, height), full, part }
    }

    /// The same if there are no margins.
    pub(crate) fn stretch(&self, width: usize, height: usize) -> Option<Stretch> {
        Some(self.cut(width, height)).filter(|cut| (cut.part.width, cut.part.height) == (self.size, self.size))
    }

    /// Resizes and crops `picture` into `out` (`size * size * 3` bytes). Only the cropped part is computed.
    pub fn fit(&self, picture: &Picture, resizer: &mut Resizer, out: &mut [u8]) {
        let Stretch { crop, full, part } = self.cut(picture.width(), picture.height());
        if (part.width, part.height) == (self.size, self.size) {
            return resizer.resize_part(picture, crop, full, part, out);
        }
        let mut unpadded = std::mem::take(&mut resizer.unpadded);
        unpadded.resize(part.width * part.height * 3, 0);
        resizer.resize_part(picture, crop, full, part, &mut unpadded);
        out.fill(0);
        let margin = |length: usize| (-self.crop_start(length)).max(0) as usize;
        let rows = out.chunks_exact_mut(self.size * 3).skip(margin(full.1));
        for (row, source) in rows.zip(unpadded.chunks_exact(part.width * 3)) {
            row[margin(full.0) * 3..][..source.len()].copy_from_slice(source);
        }
        resizer.unpadded = unpadded;
    }

    /// The same on a canvas.
    pub(crate) fn show(&self, canvas: &mut Canvas) {
        canvas.replace(self.size, self.size, |before, resizer, after| self.fit(before, resizer, after));
    }
}

/// Also a step of training without random crops.
impl Transform for EvalTransform {
    fn name(&self) -> &str {
        "resize_center_crop"
    }

    fn parameters(&self) -> String {
        format!("size={} resize={}", self.size, self.resize)
    }

    fn check(&self) -> Result<(), DataError> {
        check_size(self.size).and_then(|()| check_size(self.resize))
    }

    fn stretch(&self, _: &mut RandomStream, width: usize, height: usize) -> Option<Stretch> {
        EvalTransform::stretch(self, width, height)
    }

    fn apply(&self, canvas: &mut Canvas, _: &mut RandomStream) {
        self.show(canvas);
    }
}
