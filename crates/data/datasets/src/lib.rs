//! Data sets as they lie in files, as torchvision.datasets has them: opened, recognised, split, and packed.
//!
//! [`open()`] recognises a folder of class folders, a table of images, tar archives of WebDataset, Parquet files, CIFAR,
//! MNIST, ImageNet in Kaggle's layout and packed files, on this machine or on a server. It gives the parts of the data set
//! as [`Dataset`](enmasse_data::Dataset)s, which a loader of `enmasse-data` turns into batches. [`pack()`] writes a data set
//! into one file. [`shapes`] is a small data set that needs no download.
//!
//! ```
//! use enmasse_datasets::{DataKind, OpenOptions, open};
//!
//! let root = tempfile::tempdir()?;
//! for class in ["cat", "dog"] {
//!     std::fs::create_dir(root.path().join(class))?;
//!     for number in 0..5 {
//!         std::fs::write(root.path().join(format!("{class}/{number}.jpg")), [])?; // images are read later
//!     }
//! }
//! let data = open(root.path(), &OpenOptions::default())?;
//! assert_eq!((data.kind, data.classes.as_slice()), (DataKind::Folder, &["cat".to_owned(), "dog".to_owned()][..]));
//! assert_eq!((data.train.len(), data.validation.len()), (8, 2));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cifar;
mod file_list;
mod folder;
mod idx;
mod kind;
mod layout;
mod left_out;
mod open;
mod opened;
mod packed;
mod packed_file;
#[cfg(feature = "parquet")]
mod parquet;
mod pattern;
mod reading;
mod relabel;
mod scan;
pub mod shapes;
mod shards;
mod split;
mod storage;
mod stratify;
mod targets;
mod warning;

pub use folder::Folder;
pub use kind::DataKind;
pub use layout::DataLayout;
pub use open::open;
pub use opened::{OpenData, OpenOptions};
pub use packed_file::{PackForm, PackOptions, Packed, pack};
pub use split::{Split, SplitKind};
pub use targets::TaskKind;
pub use warning::DataWarning;

/// How objects on servers are read.
pub use enmasse_remote::{RemoteOptions, is_remote};

// What the program is made of, and programs that train need not know: it may change without notice.
#[doc(hidden)]
pub use left_out::LeftOut;
#[doc(hidden)]
pub use open::{
    folder_of, holds_known_set, holds_unlabelled, is_packed, is_self_contained, open_unlabelled, open_whole,
    tables_above,
};
#[doc(hidden)]
pub use opened::{Unlabelled, WholeData};
#[doc(hidden)]
pub use packed_file::Unpacked;
#[doc(hidden)]
pub use relabel::relabel;
#[doc(hidden)]
pub use scan::{Entered, LINK_ABOVE, is_clutter, list_images};
#[doc(hidden)]
pub use storage::Container;
