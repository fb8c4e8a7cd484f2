//! Mean and std of pixels, from exact sums: neither the order of images nor the number of threads changes a bit.

/// The numbers of pixels, and the sums of their values and squares, per channel. 2^48 pixels fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moments {
    pixels: u64,
    sums: [u64; 3],
    squares: [u64; 3],
}

impl Moments {
    /// Those of RGB bytes, three for each pixel.
    pub fn of(pixels: &[u8]) -> Self {
        let (pixels, _) = pixels.as_chunks::<3>();
        let mut found = Moments { pixels: pixels.len() as u64, ..Moments::default() };
        for pixel in pixels {
            for ((sum, square), &byte) in found.sums.iter_mut().zip(&mut found.squares).zip(pixel) {
                *sum += u64::from(byte);
                *square += u64::from(byte) * u64::from(byte);
            }
        }
        found
    }

    /// Adds those of other pixels.
    pub fn add(&mut self, other: &Moments) {
        self.pixels += other.pixels;
        for channel in 0..3 {
            self.sums[channel] += other.sums[channel];
            self.squares[channel] += other.squares[channel];
        }
    }

    /// The mean of each channel, on the scale 0 to 1; NaN without pixels.
    pub fn mean(&self) -> [f64; 3] {
        self.sums.map(|sum| sum as f64 / self.pixels as f64 / 255.0)
    }

    /// The std of each channel, on the scale 0 to 1: the root of the mean square of the distances from the mean.
    pub fn std(&self) -> [f64; 3] {
        let count = u128::from(self.pixels);
        std::array::from_fn(|channel| {
            let sum = u128::from(self.sums[channel]);
            // The difference of two large numbers, before it is rounded.
            let spread = count * u128::from(self.squares[channel]) - sum * sum;
            (spread as f64).sqrt() / self.pixels as f64 / 255.0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_and_deviations() {
        let check = |parts: &[&[u8]], mean: [f64; 3], std: [f64; 3]| {
            let mut moments = Moments::default();
            parts.iter().for_each(|part| moments.add(&Moments::of(part)));
            assert_eq!(moments, Moments::of(&parts.concat()));
            let near = |found: [f64; 3], expected: [f64; 3]| {
                found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-15)
            };
            assert!(near(moments.mean(), mean) && near(moments.std(), std), "{moments:?}");
        };
        check(&[&[0, 255, 51]], [0.0, 1.0, 0.2], [0.0; 3]);
        check(&[&[0, 0, 51], &[255, 0, 102]], [0.5, 0.0, 0.3], [0.5, 0.0, 0.1]);
        // Distances of 2, 0, 2 levels: the root of 8/3.
        let std = (8.0f64 / 3.0).sqrt() / 255.0;
        check(&[&[49, 49, 49, 51, 51, 51], &[53, 53, 53]], [0.2; 3], [std; 3]);
        assert!(Moments::default().mean()[0].is_nan());
    }
}
