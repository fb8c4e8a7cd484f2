//! Images: decoding with Pillow's results, and torchvision's resize, transforms and augmentation.
//!
//! [`decode`] makes an [`Image`] from the bytes of a JPEG, PNG, WebP, BMP or GIF file. [`Resizer`] resizes it with the
//! bits of Pillow. A [`TrainTransform`] is a list of random [`Transform`]s, and an [`EvalTransform`] resizes and crops.
//! What is random is a function of (seed, epoch, sample) alone. A loader that knows the crop of an image before it is
//! decoded asks for that [`ImageRegion`] alone. Nothing here knows data sets or how they lie in files.
//!
//! ```
//! use enmasse_image::{Canvas, EvalTransform, Image, Resizer, TrainTransform};
//!
//! let image = Image::new(40, 30, (0..40 * 30 * 3).map(|byte| byte as u8).collect())?;
//! let evaluation = EvalTransform::new(24);
//! let mut pixels = vec![0; 24 * 24 * 3];
//! evaluation.fit(&image, &mut Resizer::new(), &mut pixels);
//!
//! let mut canvas = Canvas::new(image);
//! TrainTransform::new(24).apply(&mut canvas, 0, 3, 17); // seed 0, epoch 3, sample 17
//! assert_eq!((canvas.image().width(), canvas.image().height()), (24, 24));
//! # Ok::<(), enmasse_image::ImageError>(())
//! ```

mod crop_box;
pub mod decode;
mod error;
mod flip_rows;
#[cfg(fuzzing)]
pub mod fuzzing;
mod image;
mod image_region;
mod normalization;
mod resize;
mod transform;

pub use crop_box::CropBox;
pub use decode::{ImageFormat, ReadOptions};
pub use error::ImageError;
pub use image::Image;
pub use image_region::{ImageRegion, RegionRequest};
pub use normalization::Normalization;
pub use resize::{Resampling, Resizer};
pub use transform::{
    Affine, AlternatingFlip, AugMix, AutoAugment, AutoAugmentPolicy, ColorJitter, ErasingValue, EvalCrop,
    EvalTransform, GaussianBlur, Grayscale, Interpolation, Jitter, PaddingMode, RandAugment, RandomAffine, RandomCrop,
    RandomErasing, RandomGrayscale, RandomHorizontalFlip, RandomPerspective, RandomResizedCrop, RandomRotation,
    RandomVerticalFlip, TrainTransform, Transform, TrivialAugmentWide,
};

/// The random numbers of transforms.
pub use enmasse_tensor::RandomStream;

// What the program is made of, and programs that train need not know: it may change without notice.
#[doc(hidden)]
pub use transform::{AutoOperation, Canvas, Crop, CropResize, Mixing, Mixture};
