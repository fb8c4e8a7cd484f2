//! How data are opened, and what opening gives: the parts of a data set, all of it, or its images without labels.

use std::path::PathBuf;
use std::sync::Arc;

use enmasse_data::Dataset;
use enmasse_image::decode::ReadOptions;
use enmasse_remote::RemoteOptions;

use crate::{DataKind, DataLayout, DataWarning, LeftOut, Split, SplitKind, TaskKind};

/// How [`crate::open()`] reads data that are not one of the known sets.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenOptions {
    /// Whose random draw decides which images are for validation, where these are no part of their own.
    pub split: SplitKind,
    /// The seed of the draw.
    pub split_seed: u64,
    /// The fraction of each class for validation, in [0, 1).
    pub val_fraction: f64,
    /// How image files become RGB pixels.
    pub reading: ReadOptions,
    /// Where the names of the files have their classes: `{class}.{number}.jpg`. `None` takes the classes from folders.
    pub label_pattern: Option<String>,
    /// The column of a manifest that has the paths of images, or of a Parquet file that has their bytes. `None` finds it by its name.
    pub path_column: Option<String>,
    /// The column of a manifest or a Parquet file that has the classes, labels or numbers; several of them separated by commas.
    /// `None` finds it by its name.
    pub label_column: Option<String>,
    /// What a model is to predict. `None` finds it from the data.
    pub task: Option<TaskKind>,
    /// The folder from which relative paths of a manifest begin. `None` is that of the manifest.
    pub manifest_root: Option<PathBuf>,
    /// How objects on servers are read.
    pub remote: RemoteOptions,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            split: SplitKind::Seeded,
            split_seed: 0,
            val_fraction: 0.2,
            reading: ReadOptions::default(),
            label_pattern: None,
            path_column: None,
            label_column: None,
            task: None,
            manifest_root: None,
            remote: RemoteOptions::default(),
        }
    }
}

/// An opened data set in its parts.
#[derive(Clone)]
pub struct OpenData {
    /// The kind of data set.
    pub kind: DataKind,
    /// What a model is to predict of its images. If that is not one class, [`Dataset::targets`] has it, and labels are 0.
    pub task: TaskKind,
    /// How it lies in files.
    pub layout: DataLayout,
    /// The folder that contains its files: the given one, or one inside it. Of a manifest its path.
    pub folder: PathBuf,
    /// The training part.
    pub train: Arc<dyn Dataset>,
    /// The validation part; of CIFAR and MNIST the test part.
    pub validation: Arc<dyn Dataset>,
    /// The test part, if the data have one besides the validation part.
    pub test: Option<Arc<dyn Dataset>>,
    /// Names of the classes by label, of all labels, or of a sample's numbers.
    pub classes: Vec<String>,
    /// Whether the validation part is the data's own; otherwise it was sampled from the training part.
    pub has_parts: bool,
    /// The parts as lists of files, if that is what they are.
    pub split: Option<Split>,
    /// What the user should know about the data.
    pub warnings: Vec<DataWarning>,
}

/// An opened data set that is not split.
#[derive(Clone)]
pub struct WholeData {
    /// The kind of data set.
    pub kind: DataKind,
    /// What a model is to predict of its images: see [`OpenData::task`].
    pub task: TaskKind,
    /// All of it, or the part that it holds out itself.
    pub dataset: Arc<dyn Dataset>,
    /// Names of the classes by label, of all labels, or of a sample's numbers.
    pub classes: Vec<String>,
    /// Whether the data set is only the part that the data hold out.
    pub is_held_out: bool,
    /// How it lies in files.
    pub layout: DataLayout,
    /// What the scan of folders found and could not use.
    pub left_out: LeftOut,
    /// What the user should know about the data.
    pub warnings: Vec<DataWarning>,
}

/// The images of a data set.
#[derive(Clone)]
pub struct Unlabelled {
    /// The kind of data set.
    pub kind: DataKind,
    /// How it lies in files.
    pub layout: DataLayout,
    /// All of its images, or those of each part.
    pub parts: Vec<Arc<dyn Dataset>>,
    /// What the user should know about the data.
    pub warnings: Vec<DataWarning>,
}

impl Unlabelled {
    pub(crate) fn of(layout: DataLayout, images: impl Dataset + 'static) -> Self {
        Unlabelled { kind: DataKind::Folder, layout, parts: vec![Arc::new(images)], warnings: Vec::new() }
    }
}
