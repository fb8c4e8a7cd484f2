//! torchvision's RandomErasing, on bytes.
//!
//! torchvision erases after the normalisation, where its usual value 0 stands for the mean colour of the data set, and "random" for
//! draws from the standard normal distribution. Here the device normalises later, so the same colours are written as bytes: rounded
//! to the nearest level, and clipped to 0..=255.

use enmasse_tensor::RandomStream;

use super::{check_probability, check_range};
use crate::{Canvas, CropBox, ImageError, Normalization, Transform};

/// RandomErasing: paints over a rectangle of some images (Zhong et al. 2020).
#[derive(Clone, Debug, PartialEq)]
pub struct RandomErasing {
    /// The probability of erasing a part of an image.
    pub probability: f64,
    /// Least and largest fraction of the image's area.
    pub scale: (f64, f64),
    /// Least and largest height / width of the rectangle; sampled uniformly in the logarithm.
    pub ratio: (f64, f64),
    /// The colours of the rectangle.
    pub value: ErasingValue,
    /// The normalisation that follows: of three channels, or of one for all.
    pub normalization: Normalization,
}

/// The colours of an erased rectangle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErasingValue {
    /// The data set's mean colour: torchvision's `value=0`.
    Mean,
    /// A normal distribution about that for each byte, with the data set's deviation: torchvision's `value="random"`.
    Random,
}

impl RandomErasing {
    /// With torchvision's defaults.
    pub fn new(probability: f64, normalization: Normalization) -> Self {
        let (scale, ratio) = ((0.02, 0.33), (0.3, 3.3));
        RandomErasing { probability, scale, ratio, value: ErasingValue::Mean, normalization }
    }

    /// The rectangle of an image of `width` × `height`: `None` if it is to stay whole, or if ten tries gave none that fits.
    pub fn draw(&self, random: &mut RandomStream, width: usize, height: usize) -> Option<CropBox> {
        if random.unit() >= self.probability {
            return None;
        }
        let area = (width * height) as f64;
        for _ in 0..10 {
            let erased = area * random.uniform(self.scale.0, self.scale.1);
            let ratio = random.uniform(self.ratio.0.ln(), self.ratio.1.ln()).exp();
            // Python rounds halves to even.
            let h = (erased * ratio).sqrt().round_ties_even() as usize;
            let w = (erased / ratio).sqrt().round_ties_even() as usize;
            if h < height && w < width {
                let top = random.below((height - h + 1) as u64) as usize;
                let left = random.below((width - w + 1) as u64) as usize;
                return Some(CropBox { left, top, width: w, height: h });
            }
        }
        None
    }
}

impl Transform for RandomErasing {
    fn name(&self) -> &str {
        "random_erasing"
    }

    fn parameters(&self) -> String {
        let RandomErasing { probability, scale, ratio, value, normalization } = self;
        let Normalization { mean, std } = normalization;
        let value = match value {
            ErasingValue::Mean => format!("mean {mean:?}"),
            ErasingValue::Random => format!("random {mean:?} {std:?}"),
        };
        format!("probability={probability} scale={}..{} ratio={}..{} value={value}", scale.0, scale.1, ratio.0, ratio.1)
    }

    fn check(&self) -> Result<(), ImageError> {
        check_probability("an erasing", self.probability)?;
        check_range("the scale of random_erasing", self.scale, 0.0, 1.0)?;
        check_range("the ratio of random_erasing", self.ratio, f64::MIN_POSITIVE, f64::MAX)
    }

    fn apply(&self, canvas: &mut Canvas, random: &mut RandomStream) {
        let (width, height) = (canvas.image().width(), canvas.image().height());
        let Some(part) = self.draw(random, width, height) else { return };
        let channel = |constants: &[f32], channel: usize| 255.0 * f64::from(constants[channel % constants.len()]);
        let Normalization { mean, std } = &self.normalization;
        let is_grey = self.normalization.channels() == 1;
        let [mean, std] = [mean, std].map(|constants| [0, 1, 2].map(|place| channel(constants, place)));
        for row in canvas.pixels_mut().chunks_exact_mut(width * 3).skip(part.top).take(part.height) {
            let (pixels, _) = row[part.left * 3..][..part.width * 3].as_chunks_mut::<3>();
            for pixel in pixels {
                let distances = match self.value {
                    ErasingValue::Mean => [0.0; 3],
                    // The channels of a grey image are equal.
                    ErasingValue::Random if is_grey => [random.normal(); 3],
                    ErasingValue::Random => [(); 3].map(|()| random.normal()),
                };
                *pixel = [0, 1, 2].map(|channel| (mean[channel] + distances[channel] * std[channel]).round() as u8);
            }
        }
    }
}
