//! torchvision's RandAugment and TrivialAugmentWide.

use enmasse_tensor::RandomStream;

use super::operation::{DEFAULT, Space};
use super::{AutoOperation, check_bins};
use crate::{Canvas, ImageError, Interpolation, Transform};

/// RandAugment: some operations of one magnitude, one after another (Cubuk et al. 2020).
#[derive(Clone, Debug, PartialEq)]
pub struct RandAugment {
    /// Number of operations, 1 to 100. Each is sampled anew from fourteen.
    pub num_ops: usize,
    /// Number of the magnitude, from 0: below `num_magnitude_bins`.
    pub magnitude: usize,
    /// Number of magnitudes from nothing to the strongest.
    pub num_magnitude_bins: usize,
    /// torchvision's default is [`Interpolation::Nearest`].
    pub interpolation: Interpolation,
}

impl Default for RandAugment {
    /// torchvision's defaults: two operations of magnitude 9 of 31.
    fn default() -> Self {
        RandAugment { num_ops: 2, magnitude: 9, num_magnitude_bins: 31, interpolation: Interpolation::Nearest }
    }
}

impl RandAugment {
    const SPACE: Space = Space {
        shear: 0.3,
        translate: |length| 150.0 / 331.0 * length as f64,
        rotate: 30.0,
        enhance: 0.9,
        posterize: (8.0, 4.0),
    };

    /// The next operation on an image of `width` × `height`, and its magnitude.
    pub fn draw(&self, random: &mut RandomStream, width: usize, height: usize) -> (AutoOperation, f64) {
        let operation = DEFAULT[random.below(DEFAULT.len() as u64) as usize];
        let bins = self.num_magnitude_bins;
        let magnitude = Self::SPACE.magnitude(operation, self.magnitude, bins, width, height);
        (operation, signed(random, operation, magnitude))
    }
}

impl Transform for RandAugment {
    fn name(&self) -> &str {
        "rand_augment"
    }

    fn parameters(&self) -> String {
        let RandAugment { num_ops, magnitude, num_magnitude_bins, interpolation } = self;
        format!("num_ops={num_ops} magnitude={magnitude}/{num_magnitude_bins} interpolation={interpolation}")
    }

    fn check(&self) -> Result<(), ImageError> {
        let RandAugment { num_ops, magnitude, num_magnitude_bins, .. } = *self;
        check_bins(num_magnitude_bins)?;
        if !(1..=100).contains(&num_ops) {
            return Err(ImageError::Setting(format!("{num_ops} operations are out of range: use 1 to 100")));
        }
        if magnitude >= num_magnitude_bins {
            let most = num_magnitude_bins - 1;
            return Err(ImageError::Setting(format!("a magnitude of {magnitude} is out of range: use 0 to {most}")));
        }
        Ok(())
    }

    fn apply(&self, canvas: &mut Canvas, random: &mut RandomStream) {
        for _ in 0..self.num_ops {
            let (operation, magnitude) = self.draw(random, canvas.image().width(), canvas.image().height());
            operation.apply(canvas, magnitude, self.interpolation);
        }
    }
}

/// TrivialAugmentWide: one operation of any magnitude (Müller and Hutter 2021).
#[derive(Clone, Debug, PartialEq)]
pub struct TrivialAugmentWide {
    /// Number of magnitudes from nothing to the strongest.
    pub num_magnitude_bins: usize,
    /// torchvision's default is [`Interpolation::Nearest`].
    pub interpolation: Interpolation,
}

impl Default for TrivialAugmentWide {
    /// torchvision's defaults.
    fn default() -> Self {
        TrivialAugmentWide { num_magnitude_bins: 31, interpolation: Interpolation::Nearest }
    }
}

impl TrivialAugmentWide {
    const SPACE: Space =
        Space { shear: 0.99, translate: |_| 32.0, rotate: 135.0, enhance: 0.99, posterize: (8.0, 2.0) };

    /// The operation on an image, and its magnitude.
    pub fn draw(&self, random: &mut RandomStream) -> (AutoOperation, f64) {
        let operation = DEFAULT[random.below(DEFAULT.len() as u64) as usize];
        let bins = self.num_magnitude_bins;
        let bin = random.below(bins as u64) as usize;
        // No magnitude depends on the image.
        let magnitude = Self::SPACE.magnitude(operation, bin, bins, 0, 0);
        (operation, signed(random, operation, magnitude))
    }
}

impl Transform for TrivialAugmentWide {
    fn name(&self) -> &str {
        "trivial_augment_wide"
    }

    fn parameters(&self) -> String {
        format!("num_magnitude_bins={} interpolation={}", self.num_magnitude_bins, self.interpolation)
    }

    fn check(&self) -> Result<(), ImageError> {
        check_bins(self.num_magnitude_bins)
    }

    fn apply(&self, canvas: &mut Canvas, random: &mut RandomStream) {
        let (operation, magnitude) = self.draw(random);
        operation.apply(canvas, magnitude, self.interpolation);
    }
}

/// The magnitude with a random sign, if the operation has one.
pub(super) fn signed(random: &mut RandomStream, operation: AutoOperation, magnitude: f64) -> f64 {
    if operation.is_signed() && random.below(2) == 1 { -magnitude } else { magnitude }
}
