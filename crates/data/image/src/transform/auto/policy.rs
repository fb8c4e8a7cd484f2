//! torchvision's AutoAugment: the policies that were found for ImageNet, CIFAR-10 and SVHN.

use enmasse_tensor::RandomStream;

use super::AutoOperation::{self, *};
use super::operation::Space;
use super::rand_augment::signed;
use crate::{Canvas, Interpolation, Transform};

/// AutoAugment: one of 25 pairs of operations, each with a probability and a magnitude (Cubuk et al. 2019).
#[derive(Clone, Debug, PartialEq)]
pub struct AutoAugment {
    /// The pairs.
    pub policy: AutoAugmentPolicy,
    /// torchvision's default is [`Interpolation::Nearest`].
    pub interpolation: Interpolation,
}

/// The data set for which the pairs were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoAugmentPolicy {
    /// Mostly colours.
    ImageNet,
    /// Colours and movements.
    Cifar10,
    /// Street-view house numbers: mostly shears and inverted colours.
    Svhn,
}

impl AutoAugmentPolicy {
    /// torchvision's name.
    pub const fn name(self) -> &'static str {
        match self {
            AutoAugmentPolicy::ImageNet => "imagenet",
            AutoAugmentPolicy::Cifar10 => "cifar10",
            AutoAugmentPolicy::Svhn => "svhn",
        }
    }

    fn pairs(self) -> &'static [Pair; 25] {
        match self {
            AutoAugmentPolicy::ImageNet => &IMAGENET,
            AutoAugmentPolicy::Cifar10 => &CIFAR10,
            AutoAugmentPolicy::Svhn => &SVHN,
        }
    }
}

impl AutoAugment {
    const SPACE: Space = Space {
        shear: 0.3,
        translate: |length| 150.0 / 331.0 * length as f64,
        rotate: 30.0,
        enhance: 0.9,
        posterize: (8.0, 4.0),
    };

    /// With torchvision's default interpolation.
    pub fn new(policy: AutoAugmentPolicy) -> Self {
        AutoAugment { policy, interpolation: Interpolation::Nearest }
    }

    /// The operations on an image of `width` × `height`, in order, with their magnitudes.
    pub fn draw(&self, random: &mut RandomStream, width: usize, height: usize) -> [Option<(AutoOperation, f64)>; 2] {
        let pairs = self.policy.pairs();
        let pair = pairs[random.below(pairs.len() as u64) as usize];
        pair.map(|(operation, probability, bin)| {
            let happens = random.unit() < probability;
            let magnitude = signed(random, operation, Self::SPACE.magnitude(operation, bin, 10, width, height));
            happens.then_some((operation, magnitude))
        })
    }
}

impl Transform for AutoAugment {
    fn name(&self) -> &str {
        "auto_augment"
    }

    fn parameters(&self) -> String {
        format!("policy={} interpolation={}", self.policy.name(), self.interpolation)
    }

    fn apply(&self, canvas: &mut Canvas, random: &mut RandomStream) {
        let (width, height) = (canvas.image().width(), canvas.image().height());
        for (operation, magnitude) in self.draw(random, width, height).into_iter().flatten() {
            operation.apply(canvas, magnitude, self.interpolation);
        }
    }
}

/// Two operations, each with its probability and the number of its magnitude, of ten. The number is 0 for operations without one.
type Pair = [(AutoOperation, f64, usize); 2];

// As torchvision lists them.

const IMAGENET: [Pair; 25] = [
    [(Posterize, 0.4, 8), (Rotate, 0.6, 9)],
    [(Solarize, 0.6, 5), (AutoContrast, 0.6, 0)],
    [(Equalize, 0.8, 0), (Equalize, 0.6, 0)],
    [(Posterize, 0.6, 7), (Posterize, 0.6, 6)],
    [(Equalize, 0.4, 0), (Solarize, 0.2, 4)],
    [(Equalize, 0.4, 0), (Rotate, 0.8, 8)],
    [(Solarize, 0.6, 3), (Equalize, 0.6, 0)],
    [(Posterize, 0.8, 5), (Equalize, 1.0, 0)],
    [(Rotate, 0.2, 3), (Solarize, 0.6, 8)],
    [(Equalize, 0.6, 0), (Posterize, 0.4, 6)],
    [(Rotate, 0.8, 8), (Color, 0.4, 0)],
    [(Rotate, 0.4, 9), (Equalize, 0.6, 0)],
    [(Equalize, 0.0, 0), (Equalize, 0.8, 0)],
    [(Invert, 0.6, 0), (Equalize, 1.0, 0)],
    [(Color, 0.6, 4), (Contrast, 1.0, 8)],
    [(Rotate, 0.8, 8), (Color, 1.0, 2)],
    [(Color, 0.8, 8), (Solarize, 0.8, 7)],
    [(Sharpness, 0.4, 7), (Invert, 0.6, 0)],
    [(ShearX, 0.6, 5), (Equalize, 1.0, 0)],
    [(Color, 0.4, 0), (Equalize, 0.6, 0)],
    [(Equalize, 0.4, 0), (Solarize, 0.2, 4)],
    [(Solarize, 0.6, 5), (AutoContrast, 0.6, 0)],
    [(Invert, 0.6, 0), (Equalize, 1.0, 0)],
    [(Color, 0.6, 4), (Contrast, 1.0, 8)],
    [(Equalize, 0.8, 0), (Equalize, 0.6, 0)],
];

const CIFAR10: [Pair; 25] = [
    [(Invert, 0.1, 0), (Contrast, 0.2, 6)],
    [(Rotate, 0.7, 2), (TranslateX, 0.3, 9)],
    [(Sharpness, 0.8, 1), (Sharpness, 0.9, 3)],
    [(ShearY, 0.5, 8), (TranslateY, 0.7, 9)],
    [(AutoContrast, 0.5, 0), (Equalize, 0.9, 0)],
    [(ShearY, 0.2, 7), (Posterize, 0.3, 7)],
    [(Color, 0.4, 3), (Brightness, 0.6, 7)],
    [(Sharpness, 0.3, 9), (Brightness, 0.7, 9)],
    [(Equalize, 0.6, 0), (Equalize, 0.5, 0)],
    [(Contrast, 0.6, 7), (Sharpness, 0.6, 5)],
    [(Color, 0.7, 7), (TranslateX, 0.5, 8)],
    [(Equalize, 0.3, 0), (AutoContrast, 0.4, 0)],
    [(TranslateY, 0.4, 3), (Sharpness, 0.2, 6)],
    [(Brightness, 0.9, 6), (Color, 0.2, 8)],
    [(Solarize, 0.5, 2), (Invert, 0.0, 0)],
    [(Equalize, 0.2, 0), (AutoContrast, 0.6, 0)],
    [(Equalize, 0.2, 0), (Equalize, 0.6, 0)],
    [(Color, 0.9, 9), (Equalize, 0.6, 0)],
    [(AutoContrast, 0.8, 0), (Solarize, 0.2, 8)],
    [(Brightness, 0.1, 3), (Color, 0.7, 0)],
    [(Solarize, 0.4, 5), (AutoContrast, 0.9, 0)],
    [(TranslateY, 0.9, 9), (TranslateY, 0.7, 9)],
    [(AutoContrast, 0.9, 0), (Solarize, 0.8, 3)],
    [(Equalize, 0.8, 0), (Invert, 0.1, 0)],
    [(TranslateY, 0.7, 9), (AutoContrast, 0.9, 0)],
];

const SVHN: [Pair; 25] = [
    [(ShearX, 0.9, 4), (Invert, 0.2, 0)],
    [(ShearY, 0.9, 8), (Invert, 0.7, 0)],
    [(Equalize, 0.6, 0), (Solarize, 0.6, 6)],
    [(Invert, 0.9, 0), (Equalize, 0.6, 0)],
    [(Equalize, 0.6, 0), (Rotate, 0.9, 3)],
    [(ShearX, 0.9, 4), (AutoContrast, 0.8, 0)],
    [(ShearY, 0.9, 8), (Invert, 0.4, 0)],
    [(ShearY, 0.9, 5), (Solarize, 0.2, 6)],
    [(Invert, 0.9, 0), (AutoContrast, 0.8, 0)],
    [(Equalize, 0.6, 0), (Rotate, 0.9, 3)],
    [(ShearX, 0.9, 4), (Solarize, 0.3, 3)],
    [(ShearY, 0.8, 8), (Invert, 0.7, 0)],
    [(Equalize, 0.9, 0), (TranslateY, 0.6, 6)],
    [(Invert, 0.9, 0), (Equalize, 0.6, 0)],
    [(Contrast, 0.3, 3), (Rotate, 0.8, 4)],
    [(Invert, 0.8, 0), (TranslateY, 0.0, 2)],
    [(ShearY, 0.7, 6), (Solarize, 0.4, 8)],
    [(Invert, 0.6, 0), (Rotate, 0.8, 4)],
    [(ShearY, 0.3, 7), (TranslateX, 0.9, 3)],
    [(ShearX, 0.1, 6), (Invert, 0.6, 0)],
    [(Solarize, 0.7, 2), (TranslateY, 0.6, 7)],
    [(ShearY, 0.8, 4), (Invert, 0.8, 0)],
    [(ShearX, 0.7, 9), (TranslateY, 0.8, 3)],
    [(ShearY, 0.8, 5), (AutoContrast, 0.7, 0)],
    [(ShearX, 0.7, 2), (Invert, 0.1, 0)],
];
