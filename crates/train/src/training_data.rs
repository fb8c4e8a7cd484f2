//! The data of a run: training and validation data sets with the same classes.

use std::path::Path;
use std::sync::Arc;

use enmasse_data::{
    DataError, DataKind, Dataset, DecodePool, Folder, LeftOut, OpenOptions, ReadOptions, Split, TrainTransform,
};
use serde::{Deserialize, Serialize};

use crate::TrainError;

/// Turns the usual transforms of training pictures into those of a program.
pub type Augment = Arc<dyn Fn(TrainTransform) -> TrainTransform + Send + Sync>;

/// Training and validation pictures.
#[derive(Clone)]
pub struct TrainingData {
    /// The pictures that the model learns from.
    pub train: Arc<dyn Dataset>,
    /// The pictures that judge the model after each epoch.
    pub validation: Arc<dyn Dataset>,
    /// The test part, which is not used before the end, if there is one.
    pub test: Option<Arc<dyn Dataset>>,
    /// Names of the classes, by label.
    pub classes: Vec<String>,
    /// The kind of pictures. Size, constants and augmentation follow from it unless the configuration overrides them.
    pub kind: DataKind,
    /// The files of each part, for the run folder; `None` for data sets that are not folders.
    pub split: Option<SplitRecord>,
    /// What the scan of a folder found and could not use; nothing for other data sets, and for the files of an earlier run.
    pub left_out: LeftOut,
    /// The program's change to the transforms from kind and configuration; `None` if there is none.
    pub augment: Option<Augment>,
}

/// The files of each part of a folder, relative to its root. A resumed run reads them back instead of splitting again.
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
    /// A program's own data sets, treated like pictures in folders. Both must label by the same classes, whose names
    /// are those of the training part.
    pub fn new(train: Arc<dyn Dataset>, validation: Arc<dyn Dataset>) -> Self {
        let classes = train.class_names();
        TrainingData {
            train,
            validation,
            test: None,
            classes,
            kind: DataKind::Folder,
            split: None,
            left_out: LeftOut::default(),
            augment: None,
        }
    }

    /// The same with a test part, labelled by the same classes.
    pub fn with_test(self, test: Arc<dyn Dataset>) -> Self {
        TrainingData { test: Some(test), ..self }
    }

    /// The same with other transforms of training pictures. `augment` receives those of kind and configuration, and
    /// extends them or begins a new list.
    pub fn with_augmentation(self, augment: impl Fn(TrainTransform) -> TrainTransform + Send + Sync + 'static) -> Self {
        TrainingData { augment: Some(Arc::new(augment)), ..self }
    }

    /// Opens the data in `root` ([`enmasse_data::open`]): a known data set, class folders to be split, or
    /// `train/` and `val/`.
    pub fn open(root: &Path, options: &OpenOptions) -> Result<Self, TrainError> {
        let opened = enmasse_data::open(root, options)?;
        Ok(match opened.split {
            Some(split) => Self::of_split(split),
            None => TrainingData {
                train: opened.train,
                validation: opened.validation,
                test: None,
                classes: opened.classes,
                kind: opened.kind,
                split: None,
                left_out: LeftOut::default(),
                augment: None,
            },
        })
    }

    /// The same files as in an earlier run.
    pub fn from_record(root: &Path, record: SplitRecord, reading: ReadOptions) -> Result<Self, TrainError> {
        let part = |files: Vec<String>| Folder::from_lists(root, record.classes.clone(), files);
        let split = Split { train: part(record.train)?, val: part(record.validation)? };
        Ok(Self::of_split(split.read_with(reading)))
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
            left_out: split.left_out(),
            train: Arc::new(split.train),
            validation: Arc::new(split.val),
            test: None,
            kind: DataKind::Folder,
            augment: None,
        }
    }

    /// Checks that every label of a part is one of the classes. The error names the first sample with another.
    pub(crate) fn check_labels(&self, part: &str, dataset: &dyn Dataset) -> Result<(), TrainError> {
        let classes = self.classes.len();
        match (0..dataset.len()).find(|&index| dataset.label(index) >= classes) {
            None => Ok(()),
            Some(index) => {
                let label = dataset.label(index);
                let problem = format!("the {part} data label it {label}, but there are {classes} classes, from 0");
                Err(DataError::of_sample(dataset, index, problem).into())
            }
        }
    }

    /// Bytes that reading a picture of any part takes at its peak.
    pub(crate) fn reading_bytes(&self, pool: &DecodePool) -> Result<usize, DataError> {
        Ok(pool.reading_bytes(&self.train)?.max(pool.reading_bytes(&self.validation)?))
    }

    /// Classes and samples as text, one per line, for ranks to compare.
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
