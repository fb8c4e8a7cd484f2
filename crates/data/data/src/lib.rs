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
mod dataset;
mod error;
mod loader;
mod locality;
mod mt19937;
mod order;
mod pieces;
mod places;
mod pool;
mod resampled;
mod scan_samples;
mod source;
mod task;

pub use bad_sample::BadSample;
pub use batch::Batch;
pub use dataset::Dataset;
pub use error::DataError;
pub use loader::{Batches, EvalLoader, TrainLoader};
pub use locality::Locality;
pub use order::{EpochOrder, EvalOrder, Sampler, Sharding, TrainOrder};

/// Where in an object on a server an image lies.
pub use enmasse_remote::Extent;

// What the program is made of, and programs that train need not know: it may change without notice.
#[doc(hidden)]
pub use bad_sample::skip_limit;
#[doc(hidden)]
pub use loader::AHEAD_BYTES;
#[doc(hidden)]
pub use mt19937::PythonRandom;
#[doc(hidden)]
pub use pool::DecodePool;
