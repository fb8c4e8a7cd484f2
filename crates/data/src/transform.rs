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

/// For training: what is cut out of a picture, then RandomHorizontalFlip.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainTransform {
    /// Edge of the square result, in pixels.
    pub size: usize,
    /// How the square is cut out.
    pub crop: Crop,
    /// Probability of a flip.
    pub flip: f64,
}

/// How training pictures become squares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Crop {
    /// RandomResizedCrop: any part of the picture, stretched.
    Resized {
        /// Least and largest part of the picture's area that a crop covers.
        scale: (f64, f64),
        /// Least and largest width / height of a crop; drawn uniformly in the logarithm.
        ratio: (f64, f64),
    },
    /// RandomCrop: a square of the picture with black margins. A picture that is not of the right size has it given first, as
    /// [`EvalTransform`] does it with `resize` = `size`.
    Padded {
        /// Width of the margins, in pixels; less than the size.
        padding: usize,
    },
    /// Nothing random: what [`EvalTransform`] does with this `resize`.
    None {
        /// Length that the picture's shorter side is resized to.
        resize: usize,
    },
}

impl Crop {
    /// RandomResizedCrop with torchvision's defaults.
    pub fn resized() -> Self {
        Crop::Resized { scale: (0.08, 1.0), ratio: (3.0 / 4.0, 4.0 / 3.0) }
    }
}

impl TrainTransform {
    /// RandomResizedCrop to `size` × `size` and flips, with torchvision's defaults.
    pub fn new(size: usize) -> Self {
        TrainTransform { size, crop: Crop::resized(), flip: 0.5 }
    }

    /// Fails where a parameter makes no sense.
    pub fn check(&self) -> Result<(), DataError> {
        check_size(self.size)?;
        let ordered = |(low, high): (f64, f64)| low > 0.0 && low <= high && high.is_finite();
        match self.crop {
            Crop::Resized { scale, ratio } if !ordered(scale) || scale.1 > 1.0 || !ordered(ratio) => {
                return Err(DataError::Setting(format!(
                    "a crop of scale {scale:?} and ratio {ratio:?}: scale must lie in (0, 1], ratio above 0"
                )));
            }
            Crop::Padded { padding } if padding >= self.size => {
                return Err(DataError::Setting(format!(
                    "margins of {padding} pixels around pictures of {0} hide them: give fewer than {0}",
                    self.size
                )));
            }
            Crop::None { resize } => check_size(resize)?,
            _ => {}
        }
        if !(0.0..=1.0).contains(&self.flip) {
            return Err(DataError::Setting(format!("a probability of {} for a flip: give one in [0, 1]", self.flip)));
        }
        Ok(())
    }

    /// What is cut out for sample `index` in `epoch`, of a picture of `width` × `height`. With [`Crop::Padded`] it is a part of the
    /// square with its margins; with [`Crop::None`] it is the whole picture.
    pub fn draw_crop(&self, seed: u64, epoch: u64, index: u64, width: usize, height: usize) -> CropBox {
        match self.crop {
            Crop::Resized { scale, ratio } => {
                let random = RandomStream::new(seed, "augment random_resized_crop", epoch, index);
                draw_resized(random, scale, ratio, width, height)
            }
            Crop::Padded { padding } => {
                let mut random = RandomStream::new(seed, "augment random_crop", epoch, index);
                let mut start = || random.below(2 * padding as u64 + 1) as usize;
                let (top, left) = (start(), start());
                CropBox { left, top, width: self.size, height: self.size }
            }
            Crop::None { .. } => CropBox::whole(width, height),
        }
    }

    /// Whether sample `index` is flipped in `epoch`.
    pub fn draw_flip(&self, seed: u64, epoch: u64, index: u64) -> bool {
        RandomStream::new(seed, "augment random_horizontal_flip", epoch, index).unit() < self.flip
    }

    /// Crops, resizes to `size` and flips `picture` into `out` (`size * size * 3` bytes). `crop` is one of
    /// [`draw_crop`](TrainTransform::draw_crop).
    pub fn apply(&self, picture: &Picture, crop: CropBox, flip: bool, resizer: &mut Resizer, out: &mut [u8]) {
        let size = self.size;
        match self.crop {
            Crop::Resized { .. } => resizer.resize(picture, crop, size, size, out),
            Crop::Padded { padding } if (picture.width(), picture.height()) == (size, size) => {
                cut_padded(picture.pixels(), size, padding, crop, out);
            }
            Crop::Padded { padding } => {
                let mut fitted = std::mem::take(&mut resizer.fitted);
                fitted.resize(out.len(), 0);
                EvalTransform { size, resize: size }.apply(picture, resizer, &mut fitted);
                cut_padded(&fitted, size, padding, crop, out);
                resizer.fitted = fitted;
            }
            Crop::None { resize } => EvalTransform { size, resize }.apply(picture, resizer, out),
        }
        if flip {
            flip_rows(out, size);
        }
    }
}

/// Ten tries, then the largest central crop of an allowed ratio.
fn draw_resized(
    mut random: RandomStream,
    scale: (f64, f64),
    ratio: (f64, f64),
    width: usize,
    height: usize,
) -> CropBox {
    let area = (width * height) as f64;
    for _ in 0..10 {
        let target = area * random.uniform(scale.0, scale.1);
        let ratio = random.uniform(ratio.0.ln(), ratio.1.ln()).exp();
        // Python rounds halves to even.
        let w = (target * ratio).sqrt().round_ties_even() as usize;
        let h = (target / ratio).sqrt().round_ties_even() as usize;
        if (1..=width).contains(&w) && (1..=height).contains(&h) {
            let top = random.below((height - h + 1) as u64) as usize;
            let left = random.below((width - w + 1) as u64) as usize;
            return CropBox { left, top, width: w, height: h };
        }
    }
    central_crop(ratio, width, height)
}

/// The square `crop` of a `size` × `size` picture inside black margins of `padding` pixels.
fn cut_padded(pixels: &[u8], size: usize, padding: usize, crop: CropBox, out: &mut [u8]) {
    // Along a side: how many black pixels come first, where the picture begins, and how many pixels of it there are.
    let side = |start: usize| {
        let (before, from) = (padding.saturating_sub(start).min(size), start.saturating_sub(padding).min(size));
        (before, from, size - before.max(from))
    };
    let ((above, top, rows), (before, left, columns)) = (side(crop.top), side(crop.left));
    out.fill(0);
    let source = pixels.chunks_exact(size * 3).skip(top).take(rows);
    for (out, row) in out.chunks_exact_mut(size * 3).skip(above).zip(source) {
        out[before * 3..][..columns * 3].copy_from_slice(&row[left * 3..][..columns * 3]);
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
