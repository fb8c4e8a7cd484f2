//! Operations that change each byte by a table: brightness, contrast, posterize, solarize, autocontrast, equalize, invert.
//!
//! The bytes are those of torchvision's functions of the same names on PIL images, which are Pillow's `ImageEnhance` and
//! `ImageOps`.

use super::Canvas;

/// The new byte for each byte.
type Table = [u8; 256];

fn table(new: impl Fn(u8) -> u8) -> Table {
    std::array::from_fn(|byte| new(byte as u8))
}

/// Pillow's `Image.blend` of two bytes: `from` with a factor of 0, `to` with 1, and clipped beyond.
#[inline]
pub(super) fn blend(from: u8, to: u8, factor: f32) -> u8 {
    // A cast drops the fraction and clips, as Pillow does.
    (f32::from(from) + factor * (f32::from(to) - f32::from(from))) as u8
}

/// The luminance of a pixel: ITU-R 601-2 in fixed point, as Pillow's mode "L".
#[inline]
pub(super) fn luminance([red, green, blue]: [u8; 3]) -> u8 {
    ((u32::from(red) * 19595 + u32::from(green) * 38470 + u32::from(blue) * 7471 + 0x8000) >> 16) as u8
}

impl Canvas {
    /// Multiplies the bytes by `factor`: 0 gives black.
    pub fn adjust_brightness(&mut self, factor: f64) {
        self.map(&table(|byte| blend(0, byte, factor as f32)));
    }

    /// Moves the bytes away from the image's mean luminance: a factor of 0 gives that grey, 1 the same image.
    pub fn adjust_contrast(&mut self, factor: f64) {
        let (pixels, _) = self.image().pixels().as_chunks::<3>();
        let sum: u64 = pixels.iter().map(|&pixel| u64::from(luminance(pixel))).sum();
        let mean = (sum as f64 / pixels.len() as f64 + 0.5) as u8;
        self.map(&table(|byte| blend(mean, byte, factor as f32)));
    }

    /// Keeps the highest `bits` of each byte, 0 to 8.
    ///
    /// # Panics
    /// If there are more than 8.
    pub fn posterize(&mut self, bits: u32) {
        assert!(bits <= 8, "a byte has 8 bits, not {bits}");
        let mask = (0xFF00_u32 >> bits) as u8;
        self.map(&table(|byte| byte & mask));
    }

    /// Inverts the bytes from `threshold` up.
    pub fn solarize(&mut self, threshold: f64) {
        self.map(&table(|byte| if f64::from(byte) < threshold { byte } else { !byte }));
    }

    /// Inverts all bytes.
    pub fn invert(&mut self) {
        self.pixels_mut().iter_mut().for_each(|byte| *byte = !*byte);
    }

    /// Stretches the bytes of each channel, so that they reach from 0 to 255.
    pub fn autocontrast(&mut self) {
        let tables = self.histograms().map(|histogram| {
            let low = histogram.iter().position(|&count| count > 0).unwrap_or(0);
            let high = histogram.iter().rposition(|&count| count > 0).unwrap_or(0);
            if high <= low {
                return table(|byte| byte);
            }
            let scale = 255.0 / (high - low) as f64;
            let offset = -(low as f64) * scale;
            table(|byte| (f64::from(byte) * scale + offset) as u8)
        });
        self.map_channels(&tables);
    }

    /// Makes the bytes of each channel about equally frequent.
    pub fn equalize(&mut self) {
        let tables = self.histograms().map(|histogram| {
            let last = histogram.iter().rfind(|&&count| count > 0).copied().unwrap_or(0);
            // A channel of a single value has no step, since all of its pixels are of the last value.
            let step = (histogram.iter().sum::<u32>() - last) / 255;
            if step == 0 {
                return table(|byte| byte);
            }
            let mut below = step / 2;
            histogram.map(|count| {
                let new = below / step;
                below += count;
                new.min(255) as u8
            })
        });
        self.map_channels(&tables);
    }

    /// How often each byte occurs in each channel.
    fn histograms(&self) -> [[u32; 256]; 3] {
        let mut histograms = [[0; 256]; 3];
        let (pixels, _) = self.image().pixels().as_chunks::<3>();
        for pixel in pixels {
            for (histogram, &byte) in histograms.iter_mut().zip(pixel) {
                histogram[usize::from(byte)] += 1;
            }
        }
        histograms
    }

    fn map(&mut self, table: &Table) {
        self.pixels_mut().iter_mut().for_each(|byte| *byte = table[usize::from(*byte)]);
    }

    fn map_channels(&mut self, tables: &[Table; 3]) {
        let (pixels, _) = self.pixels_mut().as_chunks_mut::<3>();
        for pixel in pixels {
            for (byte, table) in pixel.iter_mut().zip(tables) {
                *byte = table[usize::from(*byte)];
            }
        }
    }
}
