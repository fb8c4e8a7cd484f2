//! Automatic augmentation: torchvision's RandAugment, TrivialAugmentWide, AutoAugment and AugMix, with its operations and magnitudes.

mod aug_mix;
mod operation;
mod policy;
mod rand_augment;

pub use aug_mix::AugMix;
pub use operation::AutoOperation;
pub use policy::{AutoAugment, AutoAugmentPolicy};
pub use rand_augment::{RandAugment, TrivialAugmentWide};

use crate::ImageError;

fn check_bins(bins: usize) -> Result<(), ImageError> {
    if !(2..=1000).contains(&bins) {
        return Err(ImageError::Setting(format!("num_magnitude_bins of {bins} is out of range: use 2 to 1000")));
    }
    Ok(())
}
