//! What is trained on and what is judged by: two data sets that know the same classes.

use std::path::Path;
use std::sync::Arc;

use enmasse_data::{Dataset, Folder, Split};
use serde::{Deserialize, Serialize};

use crate::TrainError;

/// Training and validation pictures.
#[derive(Clone)]
pub struct TrainingData {
    /// What the model learns from.
    pub train: Arc<dyn Dataset>,
    /// What it is judged by after each epoch.
    pub validation: Arc<dyn Dataset>,
    /// What nobody looks at before the end, where there is such a part.
    pub test: Option<Arc<dyn Dataset>>,
    /// Names of the classes, by label.
    pub classes: Vec<String>,
    /// Which files are in which part, for the run folder; none for data sets that are not folders.
    pub split: Option<SplitRecord>,
}

/// Which files of a folder are in which part, relative to its root. A resumed run reads it back instead of splitting again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitRecord {
    /// Names of the classes, by label.
    pub classes: Vec<String>,
    /// Files to train on.
    pub train: Vec<String>,
    /// Files to validate on.
    pub validation: Vec<String>,
}

impl TrainingData {
    /// Data sets of one's own. Both must label by the same classes, whose names are those of the training part.
    pub fn new(train: Arc<dyn Dataset>, validation: Arc<dyn Dataset>) -> Self {
        let classes = train.class_names();
        TrainingData { train, validation, test: None, classes, split: None }
    }

    /// The same with a test part, labelled by the same classes.
    pub fn with_test(self, test: Arc<dyn Dataset>) -> Self {
        TrainingData { test: Some(test), ..self }
    }

    /// A folder of class folders, split by `split_seed` (a fifth of each class validates), or one with `train/` and `val/`.
    pub fn open(root: &Path, split_seed: u64, convert_rgb: bool) -> Result<Self, TrainError> {
        const VALIDATION: f64 = 0.2;
        Ok(Self::of_split(Split::open(root, split_seed, VALIDATION)?.convert_rgb(convert_rgb)))
    }

    /// The same files as in an earlier run.
    pub fn from_record(root: &Path, record: SplitRecord, convert_rgb: bool) -> Result<Self, TrainError> {
        let part = |files: Vec<String>| Folder::from_lists(root, record.classes.clone(), files);
        let split = Split { train: part(record.train)?, val: part(record.validation)? };
        Ok(Self::of_split(split.convert_rgb(convert_rgb)))
    }

    fn of_split(split: Split) -> Self {
        let files = |folder: &Folder| folder.files().map(str::to_owned).collect();
        let record = SplitRecord {
            classes: split.train.classes().to_vec(),
            train: files(&split.train),
            validation: files(&split.val),
        };
        TrainingData {
            classes: record.classes.clone(),
            split: Some(record),
            train: Arc::new(split.train),
            validation: Arc::new(split.val),
            test: None,
        }
    }

    /// Classes and samples as text, a line each, for ranks to compare.
    pub fn listing(&self) -> String {
        let mut text = String::new();
        for class in &self.classes {
            text += &format!("class {class}\n");
        }
        for (part, dataset) in [("train", &self.train), ("validation", &self.validation)] {
            for index in 0..dataset.len() {
                text += &format!("{part} {} {}\n", dataset.label(index), dataset.name(index));
            }
        }
        text
    }
}
