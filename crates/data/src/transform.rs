//! torchvision's transforms for training and evaluation, on `u8` pictures. Normalising is the device's work.
//!
//! Drawing random parameters and applying them are separate: the draws are pure functions of (seed, epoch, sample index).

use enmasse_tensor::RandomStream;
use serde::{Deserialize, Serialize};

use crate::{DataError, Picture, Resizer};

/// Largest edge of a batch's pictures, in pixels.
const MAX_SIZE: usize = 16_384;

/// A rectangle of pixels inside a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CropBox {
    /// Columns left of it.
    pub left: usize,
    /// Rows above it.
    pub top: usize,
    /// Its columns.
    pub width: usize,
    /// Its rows.
    pub height: usize,
}

impl CropBox {
    /// The whole of a picture.
    pub fn whole(width: usize, height: usize) -> Self {
        CropBox { left: 0, top: 0, width, height }
    }

    /// Whether it has pixels and lies inside a picture of `width` × `height`.
    pub fn fits(&self, width: usize, height: usize) -> bool {
        let inside =
            |start: usize, length: usize, whole: usize| length > 0 && length <= whole && start <= whole - length;
        inside(self.left, self.width, width) && inside(self.top, self.height, height)
    }
}

/// For training: RandomResizedCrop, then RandomHorizontalFlip.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainTransform {
    /// Edge of the square result, in pixels.
    pub size: usize,
    /// Least and largest part of the picture's area that a crop covers.
    pub scale: (f64, f64),
    /// Least and largest width / height of a crop; drawn uniformly in the logarithm.
    pub ratio: (f64, f64),
    /// Probability of a flip.
    pub flip: f64,
}

impl TrainTransform {
    /// torchvision's defaults for pictures of `size` × `size`.
    pub fn new(size: usize) -> Self {
        TrainTransform { size, scale: (0.08, 1.0), ratio: (3.0 / 4.0, 4.0 / 3.0), flip: 0.5 }
    }

    /// Fails where a parameter makes no sense.
    pub fn check(&self) -> Result<(), DataError> {
        check_size(self.size)?;
        let ordered = |(low, high): (f64, f64)| low > 0.0 && low <= high && high.is_finite();
        if !ordered(self.scale) || self.scale.1 > 1.0 || !ordered(self.ratio) || !(0.0..=1.0).contains(&self.flip) {
            return Err(DataError::Setting(format!(
                "{self:?}: scale must lie in (0, 1], ratio above 0, flip in [0, 1]"
            )));
        }
        Ok(())
    }

    /// The crop of sample `index` in `epoch`, for a picture of `width` × `height`: ten tries, then the largest central crop
    /// of an allowed ratio.
    pub fn draw_crop(&self, seed: u64, epoch: u64, index: u64, width: usize, height: usize) -> CropBox {
        let mut random = RandomStream::new(seed, "augment random_resized_crop", epoch, index);
        let area = (width * height) as f64;
        for _ in 0..10 {
            let target = area * random.uniform(self.scale.0, self.scale.1);
            let ratio = random.uniform(self.ratio.0.ln(), self.ratio.1.ln()).exp();
            // Python rounds halves to even.
            let w = (target * ratio).sqrt().round_ties_even() as usize;
            let h = (target / ratio).sqrt().round_ties_even() as usize;
            if (1..=width).contains(&w) && (1..=height).contains(&h) {
                let top = random.below((height - h + 1) as u64) as usize;
                let left = random.below((width - w + 1) as u64) as usize;
                return CropBox { left, top, width: w, height: h };
            }
        }
        central_crop(self.ratio, width, height)
    }

    /// Whether sample `index` is flipped in `epoch`.
    pub fn draw_flip(&self, seed: u64, epoch: u64, index: u64) -> bool {
        RandomStream::new(seed, "augment random_horizontal_flip", epoch, index).unit() < self.flip
    }

    /// Crops, resizes to `size` and flips `picture` into `out` (`size * size * 3` bytes).
    pub fn apply(&self, picture: &Picture, crop: CropBox, flip: bool, resizer: &mut Resizer, out: &mut [u8]) {
        resizer.resize(picture, crop, self.size, self.size, out);
        if flip {
            flip_rows(out, self.size);
        }
    }
}

/// What torchvision falls back to after ten tries.
fn central_crop(ratio: (f64, f64), width: usize, height: usize) -> CropBox {
    let given = width as f64 / height as f64;
    let (w, h) = if given < ratio.0 {
        (width, (width as f64 / ratio.0).round_ties_even() as usize)
    } else if given > ratio.1 {
        ((height as f64 * ratio.1).round_ties_even() as usize, height)
    } else {
        (width, height)
    };
    let (w, h) = (w.clamp(1, width), h.clamp(1, height));
    CropBox { left: (width - w) / 2, top: (height - h) / 2, width: w, height: h }
}

/// Mirrors each row of `size` pixels.
fn flip_rows(pixels: &mut [u8], size: usize) {
    for row in pixels.chunks_exact_mut(size * 3) {
        let (row, _) = row.as_chunks_mut::<3>();
        row.reverse();
    }
}

/// For evaluation: Resize of the shorter side, then CenterCrop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvalTransform {
    /// Edge of the square result, in pixels.
    pub size: usize,
    /// Length that the picture's shorter side is resized to.
    pub resize: usize,
}

impl EvalTransform {
    /// The usual proportion: the shorter side becomes round(size · 256 / 224).
    pub fn new(size: usize) -> Self {
        EvalTransform { size, resize: (size as f64 * 256.0 / 224.0).round() as usize }
    }

    /// Fails where a parameter makes no sense.
    pub fn check(&self) -> Result<(), DataError> {
        check_size(self.size).and_then(|()| check_size(self.resize))
    }

    /// Dimensions after Resize: the longer side is cut down to a whole number, as torchvision does.
    pub fn resized(&self, width: usize, height: usize) -> (usize, usize) {
        let (short, long) = (width.min(height).max(1), width.max(height));
        let long = (self.resize * long) as f64 / short as f64;
        if width <= height { (self.resize, long as usize) } else { (long as usize, self.resize) }
    }

    /// Where CenterCrop begins along a side of `length` pixels. Negative where it must pad with black.
    pub fn crop_start(&self, length: usize) -> isize {
        let (length, size) = (length as isize, self.size as isize);
        if length < size {
            // Padding puts the odd pixel at the end.
            return -((size - length) / 2);
        }
        ((length - size) as f64 / 2.0).round_ties_even() as isize
    }

    /// Resizes and crops `picture` into `out` (`size * size * 3` bytes). Only what the crop shows is computed.
    pub fn apply(&self, picture: &Picture, resizer: &mut Resizer, out: &mut [u8]) {
        let full = self.resized(picture.width(), picture.height());
        let whole = CropBox::whole(picture.width(), picture.height());
        let (left, top) = (self.crop_start(full.0), self.crop_start(full.1));
        let shown = CropBox {
            left: left.max(0) as usize,
            top: top.max(0) as usize,
            width: self.size.min(full.0),
            height: self.size.min(full.1),
        };
        if (shown.width, shown.height) == (self.size, self.size) {
            return resizer.resize_part(picture, whole, full, shown, out);
        }
        let mut part = std::mem::take(&mut resizer.unpadded);
        part.resize(shown.width * shown.height * 3, 0);
        resizer.resize_part(picture, whole, full, shown, &mut part);
        out.fill(0);
        let (right, down) = ((-left).max(0) as usize, (-top).max(0) as usize);
        for (row, source) in out.chunks_exact_mut(self.size * 3).skip(down).zip(part.chunks_exact(shown.width * 3)) {
            row[right * 3..][..source.len()].copy_from_slice(source);
        }
        resizer.unpadded = part;
    }
}

fn check_size(size: usize) -> Result<(), DataError> {
    if !(1..=MAX_SIZE).contains(&size) {
        return Err(DataError::Setting(format!("a picture size of {size} pixels is out of range: 1 to {MAX_SIZE}")));
    }
    Ok(())
}
