//! torchvision's ColorJitter, RandomGrayscale, and GaussianBlur of some images.

use enmasse_tensor::RandomStream;

use super::{check_probability, check_range};
use crate::{Canvas, ImageError, Transform};

/// ColorJitter: changes brightness, contrast, saturation and hue, each by a factor sampled uniformly, in random order.
#[derive(Clone, Debug, PartialEq)]
pub struct ColorJitter {
    /// Least and largest factor of [`Canvas::adjust_brightness`].
    pub brightness: (f64, f64),
    /// Least and largest factor of [`Canvas::adjust_contrast`].
    pub contrast: (f64, f64),
    /// Least and largest factor of [`Canvas::adjust_saturation`].
    pub saturation: (f64, f64),
    /// Least and largest factor of [`Canvas::adjust_hue`].
    pub hue: (f64, f64),
}

/// One change of a [`ColorJitter`], with its factor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Jitter {
    /// Of the brightness.
    Brightness(f64),
    /// Of the contrast.
    Contrast(f64),
    /// Of the saturation.
    Saturation(f64),
    /// Of the hue.
    Hue(f64),
}

impl ColorJitter {
    /// From torchvision's single numbers: a factor lies in 1 ± the number (never below 0), that of the hue in 0 ± the number.
    pub fn new(brightness: f64, contrast: f64, saturation: f64, hue: f64) -> Self {
        let around_1 = |number: f64| ((1.0 - number).max(0.0), 1.0 + number);
        ColorJitter {
            brightness: around_1(brightness),
            contrast: around_1(contrast),
            saturation: around_1(saturation),
            hue: (0.0 - hue, hue),
        }
    }

    /// The changes of an image, in order. Those whose range is the factor without effect are left out.
    pub fn draw(&self, random: &mut RandomStream) -> [Option<Jitter>; 4] {
        let ColorJitter { brightness, contrast, saturation, hue } = *self;
        let factor = |random: &mut RandomStream, (low, high): (f64, f64), neutral: f64| {
            let drawn = random.uniform(low, high);
            ((low, high) != (neutral, neutral)).then_some(drawn)
        };
        let mut changes = [
            factor(random, brightness, 1.0).map(Jitter::Brightness),
            factor(random, contrast, 1.0).map(Jitter::Contrast),
            factor(random, saturation, 1.0).map(Jitter::Saturation),
            factor(random, hue, 0.0).map(Jitter::Hue),
        ];
        for last in (1..changes.len()).rev() {
            changes.swap(last, random.below(last as u64 + 1) as usize);
        }
        changes
    }
}

impl Transform for ColorJitter {
    fn name(&self) -> &str {
        "color_jitter"
    }

    fn parameters(&self) -> String {
        let ColorJitter { brightness: b, contrast: c, saturation: s, hue: h } = self;
        format!(
            "brightness={}..{} contrast={}..{} saturation={}..{} hue={}..{}",
            b.0, b.1, c.0, c.1, s.0, s.1, h.0, h.1
        )
    }

    fn check(&self) -> Result<(), ImageError> {
        for (what, range) in
            [("brightness", self.brightness), ("contrast", self.contrast), ("saturation", self.saturation)]
        {
            check_range(&format!("the {what} of color_jitter"), range, 0.0, f64::MAX)?;
        }
        check_range("the hue of color_jitter", self.hue, -0.5, 0.5)
    }

    fn apply(&self, canvas: &mut Canvas, random: &mut RandomStream) {
        for change in self.draw(random).into_iter().flatten() {
            match change {
                Jitter::Brightness(factor) => canvas.adjust_brightness(factor),
                Jitter::Contrast(factor) => canvas.adjust_contrast(factor),
                Jitter::Saturation(factor) => canvas.adjust_saturation(factor),
                Jitter::Hue(factor) => canvas.adjust_hue(factor),
            }
        }
    }
}

/// RandomGrayscale: makes some images grey.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomGrayscale {
    /// The probability of making an image grey.
    pub probability: f64,
}

impl Transform for RandomGrayscale {
    fn name(&self) -> &str {
        "random_grayscale"
    }

    fn parameters(&self) -> String {
        format!("probability={}", self.probability)
    }

    fn check(&self) -> Result<(), ImageError> {
        check_probability("a grayscale", self.probability)
    }

    fn apply(&self, canvas: &mut Canvas, random: &mut RandomStream) {
        if random.unit() < self.probability {
            canvas.rgb_to_grayscale();
        }
    }
}

/// Grayscale: converts every image to the luminance of ITU-R 601, as Pillow's `convert("L")` does, in all three channels.
#[derive(Clone, Debug, PartialEq)]
pub struct Grayscale;

impl Transform for Grayscale {
    fn name(&self) -> &str {
        "grayscale"
    }

    fn parameters(&self) -> String {
        String::new()
    }

    fn apply(&self, canvas: &mut Canvas, _: &mut RandomStream) {
        canvas.rgb_to_grayscale();
    }
}

/// GaussianBlur of some images, as by `RandomApply([GaussianBlur(kernel_size, sigma)], p)`.
#[derive(Clone, Debug, PartialEq)]
pub struct GaussianBlur {
    /// The probability of blurring an image; torchvision's own class blurs all.
    pub probability: f64,
    /// Pixels in each direction that make one of the new image; odd.
    pub kernel_size: usize,
    /// Least and largest std, in pixels; sampled uniformly.
    pub sigma: (f64, f64),
}

impl GaussianBlur {
    /// For images of `size` × `size`, as in SimCLR (Chen et al. 2020): over a tenth of the image, with a std between 0.1
    /// and 2 pixels, which is also torchvision's default.
    pub fn new(size: usize, probability: f64) -> Self {
        GaussianBlur { probability, kernel_size: (size / 10) | 1, sigma: (0.1, 2.0) }
    }
}

impl Transform for GaussianBlur {
    fn name(&self) -> &str {
        "gaussian_blur"
    }

    fn parameters(&self) -> String {
        let GaussianBlur { probability, kernel_size, sigma } = self;
        format!("probability={probability} kernel_size={kernel_size} sigma={}..{}", sigma.0, sigma.1)
    }

    fn check(&self) -> Result<(), ImageError> {
        check_probability("a gaussian_blur", self.probability)?;
        if self.kernel_size.is_multiple_of(2) || self.kernel_size > MAX_TAPS {
            return Err(ImageError::Setting(format!(
                "a kernel_size of {} is out of range: use an odd number up to {MAX_TAPS}",
                self.kernel_size
            )));
        }
        check_range("the sigma of gaussian_blur", self.sigma, f64::MIN_POSITIVE, f64::MAX)
    }

    fn apply(&self, canvas: &mut Canvas, random: &mut RandomStream) {
        if random.unit() < self.probability {
            canvas.gaussian_blur(self.kernel_size, random.uniform(self.sigma.0, self.sigma.1));
        }
    }
}

/// Largest kernel of a blur, in pixels.
const MAX_TAPS: usize = 1023;
