//! torchvision's AugMix: a mixture of an image with several chains of operations on it.
//!
//! torchvision's AugMix computes its operations on tensors, which round some of them otherwise than PIL does. Here they are those of
//! the other automatic methods, and the mixture is torchvision's: in f32, without the fraction.

use enmasse_tensor::RandomStream;

use super::AutoOperation::{self, *};
use super::operation::Space;
use super::rand_augment::signed;
use crate::transform::dirichlet::dirichlet;
use crate::{Canvas, ImageError, Interpolation, Transform};

/// AugMix (Hendrycks et al. 2020).
#[derive(Clone, Debug, PartialEq)]
pub struct AugMix {
    /// Number of the largest magnitude to draw, of ten: 1 to 10.
    pub severity: usize,
    /// Number of chains, 1 to 16.
    pub mixture_width: usize,
    /// Number of operations in a chain, up to 16; 0 draws 1 to 3.
    pub chain_depth: usize,
    /// Parameter of the distributions of the weights: that of the image and all chains, and those of the chains.
    pub alpha: f64,
    /// Whether brightness, colour, contrast and sharpness are among the operations.
    pub all_ops: bool,
    /// torchvision's default is [`Interpolation::Bilinear`].
    pub interpolation: Interpolation,
}

impl Default for AugMix {
    /// torchvision's defaults.
    fn default() -> Self {
        let interpolation = Interpolation::Bilinear;
        AugMix { severity: 3, mixture_width: 3, chain_depth: 0, alpha: 1.0, all_ops: true, interpolation }
    }
}

/// The operations; the last four only with [`AugMix::all_ops`].
const OPERATIONS: [AutoOperation; 13] = [
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
    Brightness,
    Color,
    Contrast,
    Sharpness,
];

/// Most chains, and most operations of one.
const MAX: usize = 16;

/// Number of magnitudes.
const BINS: usize = 10;

impl AugMix {
    const SPACE: Space = Space {
        shear: 0.3,
        translate: |length| length as f64 / 3.0,
        rotate: 30.0,
        enhance: 0.9,
        posterize: (4.0, 0.0),
    };

    /// The next operation of a chain, and its magnitude.
    pub fn draw(&self, random: &mut RandomStream, width: usize, height: usize) -> (AutoOperation, f64) {
        let count = if self.all_ops { OPERATIONS.len() } else { OPERATIONS.len() - 4 };
        let operation = OPERATIONS[random.below(count as u64) as usize];
        let bin = random.below(self.severity as u64) as usize;
        (operation, signed(random, operation, Self::SPACE.magnitude(operation, bin, BINS, width, height)))
    }
}

impl Transform for AugMix {
    fn name(&self) -> &str {
        "aug_mix"
    }

    fn parameters(&self) -> String {
        let AugMix { severity, mixture_width, chain_depth, alpha, all_ops, interpolation } = self;
        format!(
            "severity={severity} mixture_width={mixture_width} chain_depth={chain_depth} alpha={alpha} all_ops={all_ops} \
             interpolation={interpolation}"
        )
    }

    fn check(&self) -> Result<(), ImageError> {
        let AugMix { severity, mixture_width, chain_depth, alpha, .. } = *self;
        let problem = if !(1..=BINS).contains(&severity) {
            format!("a severity of {severity} is out of range: use 1 to {BINS}")
        } else if !(1..=MAX).contains(&mixture_width) || chain_depth > MAX {
            format!(
                "{mixture_width} chains of {chain_depth} operations are out of range: use 1 to {MAX}, and up to {MAX}"
            )
        } else if !(alpha > 0.0 && alpha.is_finite()) {
            format!("an alpha of {alpha} is out of range: use a finite number above 0")
        } else {
            return Ok(());
        };
        Err(ImageError::Setting(problem))
    }

    fn apply(&self, canvas: &mut Canvas, random: &mut RandomStream) {
        let (width, height) = (canvas.image().width(), canvas.image().height());
        let mut original = std::mem::take(&mut canvas.kept);
        let mut sums = std::mem::take(&mut canvas.floats);
        original.clear();
        original.extend_from_slice(canvas.image().pixels());
        let mut shares = [0.0; 2];
        dirichlet(random, self.alpha, &mut shares);
        let mut weights = [0.0; MAX];
        let weights = &mut weights[..self.mixture_width];
        dirichlet(random, self.alpha, weights);

        sums.clear();
        sums.extend(original.iter().map(|&byte| shares[0] as f32 * f32::from(byte)));
        for weight in weights {
            canvas.pixels_mut().copy_from_slice(&original);
            let depth = if self.chain_depth > 0 { self.chain_depth } else { 1 + random.below(3) as usize };
            for _ in 0..depth {
                let (operation, magnitude) = self.draw(random, width, height);
                operation.apply(canvas, magnitude, self.interpolation);
            }
            let weight = *weight as f32 * shares[1] as f32;
            sums.iter_mut().zip(canvas.image().pixels()).for_each(|(sum, &byte)| *sum += weight * f32::from(byte));
        }
        canvas.pixels_mut().iter_mut().zip(&sums).for_each(|(byte, sum)| *byte = *sum as u8);
        (canvas.kept, canvas.floats) = (original, sums);
    }
}
