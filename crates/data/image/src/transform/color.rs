//! Operations on the colour of each pixel: grayscale, saturation, hue.
//!
//! The bytes are those of torchvision's functions of the same names on PIL images, which are Pillow's mode "L",
//! `ImageEnhance.Color` and mode "HSV".

use super::Canvas;
use super::point::{blend, luminance};

impl Canvas {
    /// Replaces each pixel by its luminance, in all three channels.
    pub fn rgb_to_grayscale(&mut self) {
        rgb_to_grayscale(self.pixels_mut());
    }

    /// Moves the pixels away from their luminance: a factor of 0 gives a grey image, 1 the same one.
    pub fn adjust_saturation(&mut self, factor: f64) {
        let factor = factor as f32;
        self.map_pixels(|pixel| {
            let grey = luminance(pixel);
            pixel.map(|byte| blend(grey, byte, factor))
        });
    }

    /// Turns the hue by `factor` of the whole circle, -0.5 to 0.5. Images change a little even with 0, since hue and saturation
    /// are rounded to bytes.
    pub fn adjust_hue(&mut self, factor: f64) {
        // Bytes of hue overflow to the other end of the circle.
        let turn = (factor * 255.0) as i32 as u8;
        self.map_pixels(|pixel| {
            let [hue, saturation, value] = hsv_of(pixel);
            rgb_of([hue.wrapping_add(turn), saturation, value])
        });
    }

    fn map_pixels(&mut self, new: impl Fn([u8; 3]) -> [u8; 3]) {
        let (pixels, _) = self.pixels_mut().as_chunks_mut::<3>();
        pixels.iter_mut().for_each(|pixel| *pixel = new(*pixel));
    }
}

/// Replaces each pixel of three bytes by its luminance.
pub(super) fn rgb_to_grayscale(pixels: &mut [u8]) {
    pixels.as_chunks_mut::<3>().0.iter_mut().for_each(|pixel| *pixel = [luminance(*pixel); 3]);
}

/// Hue, saturation and value as bytes. The types and the order of the operations are Pillow's (`rgb2hsv_row`), since they decide
/// the rounding.
fn hsv_of([red, green, blue]: [u8; 3]) -> [u8; 3] {
    let (value, least) = (red.max(green).max(blue), red.min(green).min(blue));
    if value == least {
        return [0, 0, value];
    }
    let chroma = f32::from(value - least);
    let distance = |byte: u8| f32::from(value - byte) / chroma;
    let [red_distance, green_distance, blue_distance] = [red, green, blue].map(distance);
    let sector = if red == value {
        blue_distance - green_distance
    } else if green == value {
        (2.0 + f64::from(red_distance) - f64::from(blue_distance)) as f32
    } else {
        (4.0 + f64::from(green_distance) - f64::from(red_distance)) as f32
    };
    let hue = ((f64::from(sector) / 6.0 + 1.0) % 1.0) as f32;
    let saturation = chroma / f32::from(value);
    [(f64::from(hue) * 255.0) as u8, (f64::from(saturation) * 255.0) as u8, value]
}

/// The reverse (Pillow's `hsv2rgb`).
fn rgb_of([hue, saturation, value]: [u8; 3]) -> [u8; 3] {
    if saturation == 0 {
        return [value; 3];
    }
    let turned = f64::from(hue) * 6.0 / 255.0;
    let sector = turned.floor();
    let fraction = (turned - sector) as f32;
    let saturation = (f64::from(saturation) / 255.0) as f32;
    let fade = |part: f64| (f64::from(value) * (1.0 - part)).round() as u8;
    let least = fade(f64::from(saturation));
    let falling = fade(f64::from(saturation * fraction));
    let rising = fade(f64::from(saturation) * (1.0 - f64::from(fraction)));
    match sector as u32 % 6 {
        0 => [value, rising, least],
        1 => [falling, value, least],
        2 => [least, value, rising],
        3 => [least, falling, value],
        4 => [rising, least, value],
        _ => [value, least, falling],
    }
}
