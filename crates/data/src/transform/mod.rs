//! torchvision's transforms for training and evaluation, on `u8` pictures. The device normalises.
//!
//! Training pictures go through a list of [`Transform`]s. Each draws its random numbers under its own key, as a pure
//! function of (seed, key, epoch, sample index), so adding one leaves the draws of the others unchanged.

mod canvas;
mod crop;
mod evaluate;
mod flip;
mod list;

pub use canvas::Canvas;
pub use crop::{CropBox, RandomCrop, RandomResizedCrop};
pub use evaluate::EvalTransform;
pub use flip::RandomHorizontalFlip;
pub use list::TrainTransform;

use enmasse_tensor::RandomStream;

use crate::DataError;

/// Largest edge of a batch's pictures, in pixels.
const MAX_SIZE: usize = 16_384;

/// One operation on a training picture. Threads share it, so its effect may depend only on its arguments.
///
/// ```
/// use enmasse_data::{Canvas, RandomStream, TrainTransform, Transform};
///
/// struct Invert(f64); // some pictures become their negatives
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

    /// Fails if a parameter is invalid.
    fn check(&self) -> Result<(), DataError> {
        Ok(())
    }

    /// Changes the picture. All randomness comes from `random`: the numbers of this transform, epoch and sample.
    fn apply(&self, canvas: &mut Canvas, random: &mut RandomStream);
}

fn check_size(size: usize) -> Result<(), DataError> {
    if !(1..=MAX_SIZE).contains(&size) {
        return Err(DataError::Setting(format!("a picture size of {size} pixels is out of range: 1 to {MAX_SIZE}")));
    }
    Ok(())
}
