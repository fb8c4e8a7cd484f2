//! Turns training images into squares: torchvision's RandomResizedCrop and RandomCrop.
//!
//! Drawing a crop and cutting it out are separate, so that each can be compared with torchvision's.

use enmasse_tensor::RandomStream;

use super::{check_size, interpolation};
use crate::{Canvas, CropBox, CropResize, EvalTransform, ImageError, Resampling, Transform};

/// RandomResizedCrop: a random part of the image, stretched to `size` × `size`.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomResizedCrop {
    /// Edge of the square result, in pixels.
    pub size: usize,
    /// Least and largest fraction of the image's area that a crop covers.
    pub scale: (f64, f64),
    /// Least and largest width / height of a crop; sampled uniformly in the logarithm.
    pub ratio: (f64, f64),
    /// The filter of the resize.
    pub resampling: Resampling,
}

impl RandomResizedCrop {
    /// torchvision's default of `scale`.
    pub const SCALE: (f64, f64) = (0.08, 1.0);
    /// torchvision's default of `ratio`.
    pub const RATIO: (f64, f64) = (3.0 / 4.0, 4.0 / 3.0);

    /// With torchvision's defaults.
    pub fn new(size: usize) -> Self {
        RandomResizedCrop { size, scale: Self::SCALE, ratio: Self::RATIO, resampling: Resampling::Bilinear }
    }

    /// The crop of an image of `width` × `height`: ten tries, then the largest central crop of an allowed ratio.
    pub fn draw(&self, random: &mut RandomStream, width: usize, height: usize) -> CropBox {
        let (scale, ratio) = (self.scale, self.ratio);
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
}

impl Transform for RandomResizedCrop {
    fn name(&self) -> &str {
        "random_resized_crop"
    }

    fn parameters(&self) -> String {
        let RandomResizedCrop { size, scale, ratio, resampling } = self;
        let interpolation = interpolation(*resampling);
        format!("size={size} scale={}..{} ratio={}..{}{interpolation}", scale.0, scale.1, ratio.0, ratio.1)
    }

    fn check(&self) -> Result<(), ImageError> {
        let RandomResizedCrop { size, scale, ratio, .. } = *self;
        let ordered = |(low, high): (f64, f64)| low > 0.0 && low <= high && high.is_finite();
        if !ordered(scale) || scale.1 > 1.0 || !ordered(ratio) {
            return Err(ImageError::Setting(format!(
                "a crop of scale {scale:?} and ratio {ratio:?}: scale must lie in (0, 1], ratio above 0"
            )));
        }
        check_size(size)
    }

    fn crop_resize(&self, random: &mut RandomStream, width: usize, height: usize) -> Option<CropResize> {
        Some(CropResize::whole(self.draw(random, width, height), (self.size, self.size), self.resampling))
    }

    fn apply(&self, canvas: &mut Canvas, random: &mut RandomStream) {
        let part = self.draw(random, canvas.image().width(), canvas.image().height());
        let crop_resize = CropResize::whole(part, (self.size, self.size), self.resampling);
        canvas.replace(self.size, self.size, |before, resizer, after| resizer.resize_part(before, &crop_resize, after));
    }
}

/// torchvision's fallback after ten tries.
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

/// What lies in the margins of an image, as torchvision's `padding_mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PaddingMode {
    /// Black.
    #[default]
    Constant,
    /// The image, mirrored at the middle of its outermost pixels.
    Reflect,
}

impl PaddingMode {
    /// torchvision's word for it.
    pub const fn name(self) -> &'static str {
        match self {
            PaddingMode::Constant => "constant",
            PaddingMode::Reflect => "reflect",
        }
    }
}

/// RandomCrop: a square of the image with margins. An image of another size is first resized as by
/// [`EvalTransform`] with `resize` = `size`.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomCrop {
    /// Edge of the square result, in pixels.
    pub size: usize,
    /// Width of the margins, in pixels; less than the size.
    pub padding: usize,
    /// What lies in the margins.
    pub padding_mode: PaddingMode,
    /// The filter of the resize.
    pub resampling: Resampling,
}

impl RandomCrop {
    /// The square to cut out of the image with its margins.
    pub fn draw(&self, random: &mut RandomStream) -> CropBox {
        let mut start = || random.below(2 * self.padding as u64 + 1) as usize;
        let (top, left) = (start(), start());
        CropBox { left, top, width: self.size, height: self.size }
    }

    /// Cuts out that square.
    pub fn cut(&self, canvas: &mut Canvas, square: CropBox) {
        let RandomCrop { size, padding, padding_mode, resampling } = *self;
        if (canvas.image().width(), canvas.image().height()) != (size, size) {
            EvalTransform { resize: size, resampling, ..EvalTransform::new(size) }.show(canvas);
        }
        if padding_mode == PaddingMode::Reflect {
            canvas.replace(size, size, |image, _, out| {
                let from = [square.left, square.top].map(|start| start as isize - padding as isize);
                reflected(image.pixels(), size, from, out);
            });
            return;
        }
        // Along a side: the number of black pixels before the image, where the image begins, and the number of its
        // pixels.
        let side = |start: usize| {
            let before = padding.saturating_sub(start).min(size);
            let from = start.saturating_sub(padding).min(size);
            (before, from, size - before.max(from))
        };
        let (above, top, rows) = side(square.top);
        let (before, left, columns) = side(square.left);
        canvas.replace(size, size, |image, _, out| {
            let source = image.pixels().chunks_exact(size * 3).skip(top).take(rows);
            for (out, row) in out.chunks_exact_mut(size * 3).skip(above).zip(source) {
                out[before * 3..][..columns * 3].copy_from_slice(&row[left * 3..][..columns * 3]);
            }
        });
    }
}

impl Transform for RandomCrop {
    fn name(&self) -> &str {
        "random_crop"
    }

    fn parameters(&self) -> String {
        let mode = match self.padding_mode {
            PaddingMode::Constant => String::new(),
            other => format!(" padding_mode={}", other.name()),
        };
        format!("size={} padding={}{mode}{}", self.size, self.padding, interpolation(self.resampling))
    }

    fn check(&self) -> Result<(), ImageError> {
        check_size(self.size)?;
        if self.padding >= self.size {
            return Err(ImageError::Setting(format!(
                "margins of {} pixels are too wide for images of {1}: use fewer than {1}",
                self.padding, self.size
            )));
        }
        Ok(())
    }

    fn apply(&self, canvas: &mut Canvas, random: &mut RandomStream) {
        let square = self.draw(random);
        self.cut(canvas, square);
    }
}

/// Writes the square of an image of `size` × `size` that begins at this column and row to `out`. What lies beyond the image is mirrored
/// at its outermost pixels; it begins less than `size` pixels beyond.
pub(super) fn reflected(image: &[u8], size: usize, from: [isize; 2], out: &mut [u8]) {
    let last = size as isize - 1;
    let mirrored = |start: isize, at: usize| (last - (last - (start + at as isize).abs()).abs()) as usize;
    for (y, out) in out.chunks_exact_mut(size * 3).enumerate() {
        let row = &image[mirrored(from[1], y) * size * 3..][..size * 3];
        for (x, out) in out.chunks_exact_mut(3).enumerate() {
            out.copy_from_slice(&row[mirrored(from[0], x) * 3..][..3]);
        }
    }
}
