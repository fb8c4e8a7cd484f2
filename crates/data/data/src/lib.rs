//! Images: data sets, decoding, transforms, sampling and the loader.
//!
//! A [`Dataset`] gives labels and RGB images; [`TrainLoader`] and [`EvalLoader`] turn it into `u8` batches on a few
//! threads. The content of a batch is a function of (seed, epoch, sample index) alone: threads, timing and the number
//! of ranks never change it.
//!
//! ```
//! use enmasse_data::{DataError, Dataset, DecodePool, EvalLoader, EvalTransform, Image, Sharding};
//! use std::sync::Arc;
//!
//! struct Greys; // a data set of one's own: sixteen plain images, dark ones and light ones
//! impl Dataset for Greys {
//!     fn len(&self) -> usize {
//!         16
//!     }
//!     fn label(&self, index: usize) -> usize {
//!         index / 8
//!     }
//!     fn read(&self, index: usize) -> Result<Image, DataError> {
//!         Image::new(8, 8, vec![index as u8 * 16; 8 * 8 * 3])
//!     }
//! }
//!
//! let pool = DecodePool::new(2)?;
//! let loader = EvalLoader::new(&pool, Arc::new(Greys), EvalTransform { resize: 8, ..EvalTransform::new(8) }, Sharding::one(0, 1, 5))?;
//! let mut seen = 0;
//! for batch in loader.pass() {
//!     seen += batch?.valid;
//! }
//! assert_eq!(seen, 16);
//! # Ok::<(), DataError>(())
//! ```

mod bad_sample;
mod batch;
mod blocks;
mod cifar;
mod container;
mod dataset;
pub mod decode;
mod error;
mod file_list;
mod flip_rows;
mod folder;
#[cfg(fuzzing)]
pub mod fuzzing;
mod idx;
mod image_region;
mod kind;
mod layout;
mod left_out;
mod level;
mod loader;
mod moments;
mod mt19937;
mod near_duplicates;
mod open;
mod open_files;
mod order;
mod packed;
mod packed_file;
mod parquet;
mod pattern;
mod pieces;
mod places;
mod pool;
mod relabel;
mod resampled;
mod resize;
mod reuse;
mod scan;
mod scan_samples;
pub mod shapes;
mod shards;
mod source;
mod split;
mod stage;
mod storage;
mod task;
mod transform;
mod warning;

pub use bad_sample::{BadSample, skip_limit};
pub use batch::Batch;
pub use container::Container;
pub use dataset::{Dataset, Image};
pub use decode::{Format, ReadOptions};
pub use error::DataError;
pub use folder::Folder;
pub use image_region::{ImageRegion, RegionRequest};
pub use kind::{Crop, DataKind, Normalization};
pub use layout::DataLayout;
pub use left_out::LeftOut;
pub use loader::{AHEAD_BYTES, Batches, EvalLoader, TrainLoader};
pub use moments::Moments;
pub use near_duplicates::{Nearest, PerceptualHash};
pub use open::{
    OpenData, OpenOptions, Unlabelled, WholeData, folder_of, holds_known_set, holds_unlabelled, is_self_contained,
    open, open_unlabelled, open_whole,
};
pub use order::{EpochOrder, EvalOrder, Sampler, Sharding, TrainOrder};
pub use packed_file::{PackForm, PackOptions, Packed, Unpacked, is_packed, pack};
pub use pool::DecodePool;
pub use relabel::relabel;
pub use resize::Resizer;
pub use scan::{is_clutter, list_images};
pub use split::{Split, SplitKind};
pub use stage::{Stage, StageError, StageEvent, Staged};
pub use transform::{
    Affine, AugMix, AutoAugment, AutoAugmentPolicy, AutoOperation, Canvas, ColorJitter, CropBox, CropResize,
    ErasingValue, EvalCrop, EvalTransform, GaussianBlur, Grayscale, Interpolation, Jitter, Mixing, Mixture,
    RandAugment, RandomAffine, RandomCrop, RandomErasing, RandomGrayscale, RandomHorizontalFlip, RandomPerspective,
    RandomResizedCrop, RandomRotation, RandomVerticalFlip, TrainTransform, Transform, TrivialAugmentWide,
};
pub use warning::DataWarning;

/// How objects on servers are read, and where in them an image lies.
pub use enmasse_remote::{Extent, RemoteOptions, is_remote};
/// The random numbers of transforms.
pub use enmasse_tensor::RandomStream;
