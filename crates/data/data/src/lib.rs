//! Data sets, sampling and the loader.
//!
//! A [`Dataset`] gives labels and RGB images; [`TrainLoader`] and [`EvalLoader`] turn it into `u8` batches on a few
//! threads. The content of a batch is a function of (seed, epoch, sample index) alone: threads, timing and the number
//! of ranks never change it.
//!
//! ```
//! use enmasse_data::{DataError, Dataset, DecodePool, EvalLoader, Sharding};
//! use enmasse_image::{EvalTransform, Image};
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
//!         Ok(Image::new(8, 8, vec![index as u8 * 16; 8 * 8 * 3])?)
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
mod error;
mod file_list;
mod folder;
mod idx;
mod kind;
mod layout;
mod left_out;
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
mod scan;
mod scan_samples;
pub mod shapes;
mod shards;
mod source;
mod split;
mod stage;
mod storage;
mod task;
mod warning;

pub use bad_sample::{BadSample, skip_limit};
pub use batch::Batch;
pub use container::Container;
pub use dataset::Dataset;
pub use error::DataError;
pub use folder::Folder;
pub use kind::DataKind;
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
pub use scan::{is_clutter, list_images};
pub use split::{Split, SplitKind};
pub use stage::{Stage, StageError, StageEvent, Staged};
pub use warning::DataWarning;

/// How objects on servers are read, and where in them an image lies.
pub use enmasse_remote::{Extent, RemoteOptions, is_remote};
