//! Tools over data sets: images that look alike, mean and std of pixels, and copies on another disk.
//!
//! [`Nearest`] finds near duplicates by a [`PerceptualHash`] of each image. [`Moments`] adds up pixels exactly. A [`Stage`]
//! copies a data set to a disk of this node, once for all processes that read it there.
//!
//! ```
//! use enmasse_dataset_tools::{Moments, Nearest, PerceptualHash};
//! use enmasse_image::{Image, ImageError, Resizer};
//!
//! let ramp = |lift: u8| Image::new(90, 80, (0..90 * 80).flat_map(|place| [lift + (place % 90) as u8; 3]).collect());
//! let (image, brighter) = (ramp(0)?, ramp(20)?);
//! let hash = |image: &Image| PerceptualHash::of(image, &mut Resizer::new());
//! let known = Nearest::new(hash(&image).map(|hash| (hash, 7)));
//! assert_eq!(hash(&brighter).and_then(|hash| known.find(&hash)), Some(7));
//! assert_eq!(Moments::of(image.pixels()).mean().map(|mean| (mean * 255.0).round()), [45.0; 3]);
//! # Ok::<(), ImageError>(())
//! ```

mod moments;
mod near_duplicates;
mod stage;

pub use moments::Moments;
pub use near_duplicates::{Nearest, PerceptualHash};
pub use stage::{Stage, StageError, StageEvent, Staged};
