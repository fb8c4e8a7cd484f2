//! Operations that combine the pixels around each one: sharpness and Gaussian blur.
//!
//! Sharpness has the bytes of torchvision's function on PIL images, which is Pillow's `ImageEnhance.Sharpness`. The blur is
//! torchvision's, summed in another order: of some thousand bytes one differs, by one level.

use super::Canvas;
use super::point::blend;

impl Canvas {
    /// Moves the pixels away from a smoothed image: a factor of 0 gives that one, 1 the same image, and more sharpens it. The
    /// pixels along the edges stay.
    pub fn adjust_sharpness(&mut self, factor: f64) {
        let width = self.image().width();
        let height = self.image().height();
        let factor = factor as f32;
        self.replace(width, height, |before, _, after| {
            let before = before.pixels();
            let row_bytes = width * 3;
            after.copy_from_slice(before);
            if width < 3 {
                return;
            }
            for (three, after) in
                before.windows(3 * row_bytes).step_by(row_bytes).zip(after[row_bytes..].chunks_mut(row_bytes))
            {
                let (above, rest) = three.split_at(row_bytes);
                let (here, below) = rest.split_at(row_bytes);
                for at in 3..row_bytes - 3 {
                    let sum_of = |row: &[u8]| u32::from(row[at - 3]) + u32::from(row[at]) + u32::from(row[at + 3]);
                    let sum = sum_of(above) + sum_of(here) + sum_of(below) + 4 * u32::from(here[at]);
                    // Pillow's filter SMOOTH, whose weights add up to 13. No sum is a tie.
                    after[at] = blend(((sum + 6) / 13) as u8, here[at], factor);
                }
            }
        });
    }

    /// Blurs the image by a Gaussian of std `sigma` over `kernel_size` pixels in both directions. The image continues as
    /// its mirror image beyond its edges. An even size counts as the next larger one.
    pub fn gaussian_blur(&mut self, kernel_size: usize, sigma: f64) {
        let (width, height) = (self.image().width(), self.image().height());
        let radius = kernel_size / 2;
        let row = width * 3;
        let taps = 2 * radius + 1;
        let padded = (width + 2 * radius) * 3;
        let mut floats = std::mem::take(&mut self.floats);
        floats.clear();
        floats.resize(taps + padded + row * height + row, 0.0);
        let (weights, rest) = floats.split_at_mut(taps);
        let (line, rest) = rest.split_at_mut(padded);
        let (rows, sums) = rest.split_at_mut(row * height);
        gaussian(weights, sigma as f32);

        for (pixels, sums) in self.image().pixels().chunks_exact(row).zip(rows.chunks_exact_mut(row)) {
            for (place, three) in line.chunks_exact_mut(3).enumerate() {
                let from = 3 * reflected(place as isize - radius as isize, width);
                three.iter_mut().zip(&pixels[from..]).for_each(|(float, &byte)| *float = f32::from(byte));
            }
            for (tap, &weight) in weights.iter().enumerate() {
                add_scaled(sums, weight, &line[3 * tap..]);
            }
        }
        for (number, pixels) in self.pixels_mut().chunks_exact_mut(row).enumerate() {
            sums.fill(0.0);
            for (tap, &weight) in weights.iter().enumerate() {
                let from = reflected((number + tap) as isize - radius as isize, height);
                add_scaled(sums, weight, &rows[from * row..]);
            }
            pixels.iter_mut().zip(&*sums).for_each(|(byte, sum)| *byte = sum.round_ties_even() as u8);
        }
        self.floats = floats;
    }
}

/// A normal distribution's density at whole distances from the middle, scaled to a sum of 1.
fn gaussian(weights: &mut [f32], sigma: f32) {
    let middle = (weights.len() / 2) as f32;
    for (place, weight) in weights.iter_mut().enumerate() {
        *weight = (-0.5 * ((place as f32 - middle) / sigma).powi(2)).exp();
    }
    let sum: f32 = weights.iter().sum();
    weights.iter_mut().for_each(|weight| *weight /= sum);
}

/// The place in `0..length` that is seen at `place` in a row of mirrors. The first and the last place occur once.
fn reflected(place: isize, length: usize) -> usize {
    if length == 1 {
        return 0;
    }
    let last = length as isize - 1;
    let turned = place.rem_euclid(2 * last);
    turned.min(2 * last - turned) as usize
}

fn add_scaled(sums: &mut [f32], weight: f32, values: &[f32]) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_at_both_ends() {
        let check = |length: usize, expected: &[usize]| {
            let found: Vec<usize> = (-5..=5).map(|place| reflected(place, length)).collect();
            assert_eq!(found, expected, "{length}");
        };
        check(1, &[0; 11]);
        check(2, &[1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]);
        check(3, &[1, 0, 1, 2, 1, 0, 1, 2, 1, 0, 1]);
        check(9, &[5, 4, 3, 2, 1, 0, 1, 2, 3, 4, 5]);
    }
}
