//! torchvision's transforms for training and evaluation, on `u8` pictures. Normalising is the device's work.
//!
//! Training pictures go through a list of [`Transform`]s. Each draws its random numbers under a key of its own, as a pure
//! function of (seed, key, epoch, sample index): adding one changes no other's draws.

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

/// One thing that is done to a training picture. Threads share it, so that what it does can depend on its arguments only.
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
    /// Its name: what texts call it, and the key that it draws under where a list gives it no other.
    fn name(&self) -> &str;

    /// Everything else that decides what it does, as text: ranks compare it.
    fn parameters(&self) -> String;

    /// Fails where a parameter makes no sense.
    fn check(&self) -> Result<(), DataError> {
        Ok(())
    }

    /// Changes the picture. All randomness comes from `random`, the numbers of this transform, epoch and sample.
    fn apply(&self, canvas: &mut Canvas, random: &mut RandomStream);
}

fn check_size(size: usize) -> Result<(), DataError> {
    if !(1..=MAX_SIZE).contains(&size) {
        return Err(DataError::Setting(format!("a picture size of {size} pixels is out of range: 1 to {MAX_SIZE}")));
    }
    Ok(())
}
