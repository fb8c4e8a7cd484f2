//! An image under a heatmap, as PNG.

use crate::sheet::{check, write_png};
use crate::{ChartError, LabelledImage};

/// How much of a pixel is the colour of its value.
const OPACITY: f64 = 0.5;
/// The shares of red, green and blue in the grey of a pixel, as in JPEG: colours are those of the values alone.
const LUMA: [f64; 3] = [0.299, 0.587, 0.114];

/// A PNG of an image, in grey, under the colours of `values`, which has a number from 0 to 1 for each pixel, row by row: from dark blue over
/// purple and orange to yellow, of equal steps in lightness.
///
/// # Errors
/// The number of bytes or of values does not match the image.
///
/// ```
/// use enmasse_charts::{LabelledImage, heatmap};
/// let image = LabelledImage { width: 2, height: 1, pixels: &[0; 6], label: "black" };
/// assert!(heatmap(&image, &[0.0, 1.0])?.starts_with(b"\x89PNG"));
/// # Ok::<(), enmasse_charts::ChartError>(())
/// ```
pub fn heatmap(image: &LabelledImage, values: &[f32]) -> Result<Vec<u8>, ChartError> {
    check(0, image)?;
    let &LabelledImage { width, height, pixels, label } = image;
    let wrong = || ChartError::Values { width, height, values: values.len() };
    if values.len() != width * height {
        return Err(wrong());
    }
    let mixed = pixels.chunks_exact(3).zip(values).flat_map(|(pixel, value)| {
        let grey: f64 = pixel.iter().zip(LUMA).map(|(channel, share)| f64::from(*channel) * share).sum();
        color(f64::from(*value)).map(|channel| (grey + (f64::from(channel) - grey) * OPACITY).round() as u8)
    });
    let mixed: Vec<u8> = mixed.collect();
    let side = |pixels: usize| u32::try_from(pixels).map_err(|_| wrong());
    let failed = |source| ChartError::Png { index: 0, label: label.to_owned(), source };
    write_png(side(width)?, side(height)?, &mixed).map_err(failed)
}

/// The colour of a value, as sRGB: in the colour space Oklab (B. Ottosson, 2020), lightness grows with the value, and the hue goes from
/// blue to yellow at the same chroma.
fn color(value: f64) -> [u8; 3] {
    const CHROMA: f64 = 0.15;
    let value = if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) };
    let lightness = 0.25 + 0.67 * value;
    let hue = (265.0 + 195.0 * value).to_radians();
    let (a, b) = (CHROMA * hue.cos(), CHROMA * hue.sin());
    let cones = [(0.3963377774, 0.2158037573), (-0.1055613458, -0.0638541728), (-0.0894841775, -1.2914855480)]
        .map(|(of_a, of_b)| (lightness + of_a * a + of_b * b).powi(3));
    let linear = [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
    .map(|row: [f64; 3]| row.iter().zip(cones).map(|(factor, cone)| factor * cone).sum::<f64>().clamp(0.0, 1.0));
    linear.map(|linear| {
        let encoded = if linear <= 0.0031308 { 12.92 * linear } else { 1.055 * linear.powf(1.0 / 2.4) - 0.055 };
        (255.0 * encoded).round() as u8
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the eye takes for lightness: the luminance of sRGB.
    fn luminance(color: [u8; 3]) -> f64 {
        let linear = color.map(|byte| (f64::from(byte) / 255.0).powf(2.2));
        0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    }

    #[test]
    fn larger_values_are_lighter() {
        let steps: Vec<f64> = (0..=64).map(|step| luminance(color(f64::from(step) / 64.0))).collect();
        assert!(steps.is_sorted_by(|a, b| a < b), "{steps:?}");
        assert!(steps[0] < 0.02 && steps[64] > 0.6, "{steps:?}");
        assert_eq!(color(f64::NAN), color(0.0));
        assert_eq!((color(-1.0), color(2.0)), (color(0.0), color(1.0)));
    }

    #[test]
    fn colours_lie_over_the_image() {
        let image = LabelledImage { width: 2, height: 1, pixels: &[0, 0, 0, 255, 255, 255], label: "" };
        // White and black are greys of their own.
        let file = heatmap(&image, &[0.0, 1.0]).unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().unwrap();
        let mut pixels = [0; 6];
        reader.next_frame(&mut pixels).unwrap();
        let [low, high] = [0.0, 1.0].map(color);
        for channel in 0..3 {
            assert_eq!(pixels[channel], (f64::from(low[channel]) / 2.0).round() as u8);
            assert_eq!(pixels[3 + channel], (f64::from(high[channel]) / 2.0 + 127.5).round() as u8);
        }
    }

    #[test]
    fn sizes_must_match() {
        let image = LabelledImage { width: 2, height: 2, pixels: &[0; 12], label: "rose" };
        let found = heatmap(&image, &[0.0; 3]).unwrap_err().to_string();
        assert_eq!(found, "a heatmap has 3 values, which does not match 2x2 pixels");
        let found = heatmap(&LabelledImage { pixels: &[0; 11], ..image }, &[0.0; 4]).unwrap_err().to_string();
        assert!(found.contains("11 bytes"), "{found}");
    }
}
