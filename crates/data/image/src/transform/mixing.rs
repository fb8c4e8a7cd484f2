//! torchvision's MixUp and CutMix, on the bytes of two images.
//!
//! torchvision mixes a batch with itself, moved by one place, by one draw. Here images are mixed in pairs, each pair by a draw of
//! its own: the result is torchvision's for a batch of the two. So threads and ranks need no other images, and each sample
//! keeps a weight of 1 in its batch.

use enmasse_tensor::RandomStream;

use super::dirichlet::dirichlet;
use crate::{CropBox, ImageError};

/// Which mixtures are sampled. With both kinds, each pair is mixed by one of them, with equal probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mixing {
    /// The parameter of Beta's distribution, from which MixUp draws the share of an image (Zhang et al. 2018); 0 for none.
    pub mixup_alpha: f64,
    /// The same for CutMix, where it is the share before the rectangle is cut at the edges (Yun et al. 2019); 0 for none.
    pub cutmix_alpha: f64,
}

/// A share is a multiple of 1 in so many: a smaller difference would hardly change a byte.
const LEVELS: u16 = 256;

/// How the two images of a pair are mixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mixture(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The weight of the own image in both, of [`LEVELS`].
    MixUp { weight: u16 },
    /// The part that is exchanged.
    CutMix { part: CropBox },
}

impl Mixing {
    /// Fails if a parameter is invalid, or if there is none.
    pub(crate) fn check(&self) -> Result<(), ImageError> {
        for (name, alpha) in [("mixup", self.mixup_alpha), ("cutmix", self.cutmix_alpha)] {
            if !(0.0..f64::INFINITY).contains(&alpha) {
                return Err(ImageError::Setting(format!(
                    "the alpha of {name}, {alpha}, is out of range: use a finite number from 0"
                )));
            }
        }
        if self.mixup_alpha == 0.0 && self.cutmix_alpha == 0.0 {
            return Err(ImageError::Setting("images are to be mixed, but neither by mixup nor by cutmix".to_owned()));
        }
        Ok(())
    }

    /// The mixture of two images of `size` × `size`.
    pub fn draw(&self, random: &mut RandomStream, size: usize) -> Mixture {
        let is_mixup = match (self.mixup_alpha > 0.0, self.cutmix_alpha > 0.0) {
            (true, true) => random.unit() < 0.5,
            (is_mixup, _) => is_mixup,
        };
        let mut shares = [0.0; 2];
        dirichlet(random, if is_mixup { self.mixup_alpha } else { self.cutmix_alpha }, &mut shares);
        if is_mixup {
            return Mixture::mixup(shares[0]);
        }
        let [x, y] = [(); 2].map(|()| random.below(size as u64) as usize);
        Mixture::cutmix(shares[0], (x, y), size)
    }
}

impl Mixture {
    /// Of each image the share of its own, from 0 to 1 and rounded to 1/256, and the rest of the other one.
    pub fn mixup(share: f64) -> Self {
        Mixture(Kind::MixUp { weight: (share * f64::from(LEVELS)).round() as u16 })
    }

    /// Images of `size` × `size` that exchange a square of the area `1 - share` about `centre`, as far as it is inside.
    pub fn cutmix(share: f64, centre: (usize, usize), size: usize) -> Self {
        let half = (0.5 * (1.0 - share).sqrt() * size as f64) as usize;
        let range = |centre: usize| (centre.saturating_sub(half), (centre + half).min(size));
        let ((left, right), (top, bottom)) = (range(centre.0), range(centre.1));
        Mixture(Kind::CutMix { part: CropBox { left, top, width: right - left, height: bottom - top } })
    }

    /// The share of its own that each of the two images of `size` × `size` keeps, from 0 to 1.
    pub fn share(&self, size: usize) -> f64 {
        match self.0 {
            Kind::MixUp { weight } => f64::from(weight) / f64::from(LEVELS),
            Kind::CutMix { part } => 1.0 - (part.width * part.height) as f64 / (size * size) as f64,
        }
    }

    /// Mixes two images, `[size, size, 3]` each. Bytes are rounded to the nearest level.
    pub fn apply(&self, [first, second]: [&mut [u8]; 2], size: usize) {
        match self.0 {
            Kind::MixUp { weight } => {
                for (a, b) in first.iter_mut().zip(second) {
                    let [own, other] = [*a, *b].map(u16::from);
                    // At most 255 · 256 + 128, which fits.
                    let mixed =
                        |own: u16, other: u16| ((own * weight + other * (LEVELS - weight) + LEVELS / 2) >> 8) as u8;
                    (*a, *b) = (mixed(own, other), mixed(other, own));
                }
            }
            Kind::CutMix { part } => {
                let rows = first.chunks_exact_mut(size * 3).zip(second.chunks_exact_mut(size * 3));
                for (a, b) in rows.skip(part.top).take(part.height) {
                    let bytes = part.left * 3..(part.left + part.width) * 3;
                    a[bytes.clone()].swap_with_slice(&mut b[bytes]);
                }
            }
        }
    }
}
