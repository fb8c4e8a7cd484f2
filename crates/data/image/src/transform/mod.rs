//! torchvision's transforms for training and evaluation, on `u8` images. The device normalises.
//!
//! Training images go through a list of [`Transform`]s ([`TrainTransform`]). Each draws its random
//! numbers under its own key, as a pure function of (seed, key, epoch, sample index), so adding one
//! leaves the draws of the others unchanged. Two transforms with one key are refused. The list's
//! text names all of them.
//!
//! # Augmentation
//!
//! torchvision's operations are methods of the [`Canvas`]: tables of bytes, fixed point, and floats
//! only where Pillow rounds them. The transforms draw, and call them. The crop comes first and
//! erasing last, so everything but the crop works on images of the batch's size. Tests compare
//! checksums of torchvision's results on PIL images.

mod auto;
mod canvas;
mod color;
mod color_jitter;
mod crop;
mod crop_resize;
mod dirichlet;
mod erasing;
mod evaluate;
mod filter;
mod flip;
mod geometry;
mod list;
mod mixing;
mod point;
mod warp;

pub use auto::{AugMix, AutoAugment, AutoAugmentPolicy, AutoOperation, RandAugment, TrivialAugmentWide};
pub use canvas::Canvas;
pub use color_jitter::{ColorJitter, GaussianBlur, Grayscale, Jitter, RandomGrayscale};
pub use crop::{PaddingMode, RandomCrop, RandomResizedCrop};
pub use crop_resize::CropResize;
pub use erasing::{ErasingValue, RandomErasing};
pub use evaluate::{EvalCrop, EvalTransform};
pub use flip::{AlternatingFlip, RandomHorizontalFlip, RandomVerticalFlip};
pub use geometry::{RandomAffine, RandomPerspective, RandomRotation};
pub use list::{Crop, TrainTransform};
pub use mixing::{Mixing, Mixture};
pub use warp::{Affine, Interpolation};

use enmasse_tensor::RandomStream;

use crate::{ImageError, Resampling};

/// Largest edge of a batch's images, in pixels.
const MAX_SIZE: usize = 16_384;

/// One operation on a training image. Threads share it, so its effect may depend only on its arguments.
///
/// ```
/// use enmasse_image::{Canvas, RandomStream, TrainTransform, Transform};
///
/// struct Invert(f64); // some images become their negatives
/// impl Transform for Invert {
///     fn name(&self) -> &str {
///         "invert"
///     }
///     fn parameters(&self) -> String {
///         format!("probability={}", self.0)
///     }
///     fn apply(&self, canvas: &mut Canvas, random: &mut RandomStream) {
///         if random.unit() < self.0 {
///             canvas.pixels_mut().iter_mut().for_each(|byte| *byte = !*byte);
///         }
///     }
/// }
///
/// let list = TrainTransform::new(224).then(Invert(0.1));
/// assert!(list.to_string().ends_with("; random_horizontal_flip probability=0.5; invert probability=0.1"));
/// ```
pub trait Transform: Send + Sync {
    /// Its name, for texts; also the key of its draws, unless a list gives it another one.
    fn name(&self) -> &str;

    /// All other values that determine its effect, as text: ranks compare it.
    fn parameters(&self) -> String;

    /// Checks the parameters.
    ///
    /// # Errors
    /// One is invalid.
    fn check(&self) -> Result<(), ImageError> {
        Ok(())
    }

    /// What [`apply`](Transform::apply) does to an image of `width` × `height`, if it does nothing but cut out a part and resize
    /// it, given the same random numbers. A loader then reads that part alone, and makes the result from it, if this is the first
    /// transform of its list. The default is for transforms that need the whole image.
    fn crop_resize(&self, _random: &mut RandomStream, _width: usize, _height: usize) -> Option<CropResize> {
        None
    }

    /// Whether [`apply`](Transform::apply) flips the image left to right, if it does nothing else, given the same random numbers. A
    /// loader then makes the image where it is needed, if the first transform has a [`crop_resize`](Transform::crop_resize), and all others
    /// only flip. The default is for transforms that do anything else.
    fn flips(&self, _random: &mut RandomStream) -> Option<bool> {
        None
    }

    /// Changes the image. All randomness comes from `random`: the numbers of this transform, epoch and sample.
    fn apply(&self, canvas: &mut Canvas, random: &mut RandomStream);
}

/// The end of a transform's parameters, for a filter other than the usual one.
fn interpolation(resampling: Resampling) -> String {
    match resampling {
        Resampling::Bilinear => String::new(),
        Resampling::Bicubic => format!(" interpolation={resampling}"),
    }
}

fn check_size(size: usize) -> Result<(), ImageError> {
    if !(1..=MAX_SIZE).contains(&size) {
        return Err(ImageError::Setting(format!("an image size of {size} pixels is out of range: 1 to {MAX_SIZE}")));
    }
    Ok(())
}

fn check_probability(what: &str, probability: f64) -> Result<(), ImageError> {
    if !(0.0..=1.0).contains(&probability) {
        return Err(ImageError::Setting(format!(
            "{what} probability of {probability} is out of range: use one in [0, 1]"
        )));
    }
    Ok(())
}

/// Fails unless `range` begins at its least number, and both lie in `least..=most`.
fn check_range(what: &str, (low, high): (f64, f64), least: f64, most: f64) -> Result<(), ImageError> {
    if !(least <= low && low <= high && high <= most) {
        let limits = match (least, most) {
            (f64::MIN_POSITIVE, f64::MAX) => "finite numbers above 0".to_owned(),
            (least, f64::MAX) => format!("finite numbers from {least}"),
            (least, most) => format!("numbers from {least} to {most}"),
        };
        return Err(ImageError::Setting(format!(
            "{what}, {low}..{high}, is out of range: use {limits}, the smaller one first"
        )));
    }
    Ok(())
}
