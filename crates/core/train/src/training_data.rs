//! The data of a run: data sets for training, validation and perhaps a test, with the same classes.

use std::path::Path;
use std::sync::Arc;

use enmasse_comm::ComparedText;
use enmasse_data::{AHEAD_BYTES, DataError, Dataset, DecodePool};
use enmasse_datasets::{DataKind, DataLayout, DataWarning, Folder, LeftOut, OpenOptions, Split, TaskKind, folder_of};
use enmasse_image::TrainTransform;
use serde::Deserialize;

use crate::per_class::differ;
use crate::{Surroundings, TargetKind, Task, TrainError};

/// Turns the default transforms of training images into those of a program.
pub type Augment = Arc<dyn Fn(TrainTransform) -> TrainTransform + Send + Sync>;

/// Images to train on, to validate with, and perhaps to test with.
#[derive(Clone)]
pub struct TrainingData {
    /// The images that the model learns from.
    pub train: Arc<dyn Dataset>,
    /// The images that evaluate the model after each epoch.
    pub validation: Arc<dyn Dataset>,
    /// The test part, if there is one besides the validation part. It is evaluated once, at the end of training.
    pub test: Option<Arc<dyn Dataset>>,
    /// What is known of each image: one class, or the labels or numbers that [`Dataset::targets`] gives.
    pub task: TaskKind,
    /// Names of the classes by label, of all labels, or of an image's numbers.
    pub classes: Vec<String>,
    /// The kind of images. Size, constants and augmentation follow from it unless the configuration overrides them.
    pub kind: DataKind,
    /// How the data lie in files.
    pub layout: DataLayout,
    /// Whether the validation part is the data's own, so that none was sampled.
    pub has_parts: bool,
    /// The files of each part, for the run folder; `None` for data sets that are not lists of files.
    pub split: Option<Split>,
    /// What the user should know about the data; nothing for the files of an earlier run.
    pub warnings: Vec<DataWarning>,
    /// What the scan of a folder found and could not use; nothing for other data sets, and for the files of an earlier run.
    pub left_out: LeftOut,
    /// The program's change to the transforms from kind and configuration; `None` if there is none.
    pub augment: Option<Augment>,
}

/// The files of each part, relative to the data's folder, as [`Split`] writes them. A resumed run reads them back instead of
/// splitting again.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct SplitRecord {
    /// What is known of each image.
    #[serde(default)]
    pub task: TaskKind,
    /// Names of the classes by label, of all labels, or of an image's numbers.
    pub classes: Vec<String>,
    /// Files to train on.
    pub train: Vec<String>,
    /// Their labels, unless these are the names of their last folders.
    #[serde(default)]
    pub train_labels: Option<Vec<u32>>,
    /// The labels that each has, or its numbers, unless it has one class.
    #[serde(default)]
    pub train_targets: Option<Vec<Vec<f32>>>,
    /// Files to validate on.
    pub validation: Vec<String>,
    /// Their labels, unless these are the names of their last folders.
    #[serde(default)]
    pub validation_labels: Option<Vec<u32>>,
    /// The labels that each has, or its numbers, unless it has one class.
    #[serde(default)]
    pub validation_targets: Option<Vec<Vec<f32>>>,
    /// Files of the test part, if the run has one.
    #[serde(default)]
    pub test: Option<Vec<String>>,
    /// Their labels, unless these are the names of their last folders.
    #[serde(default)]
    pub test_labels: Option<Vec<u32>>,
    /// The labels that each has, or its numbers, unless it has one class.
    #[serde(default)]
    pub test_targets: Option<Vec<Vec<f32>>>,
}

impl TrainingData {
    /// A program's own data sets, treated like images in folders. Both must label by the same classes, whose names are the
    /// numbers up to the largest label of the training part.
    pub fn new(train: Arc<dyn Dataset>, validation: Arc<dyn Dataset>) -> Self {
        let count = (0..train.len()).map(|index| train.label(index) + 1).max().unwrap_or(0);
        Self::of_classes((0..count).map(|class| class.to_string()).collect(), train, validation)
    }

    /// The same with names for the classes, by label.
    pub fn of_classes(classes: Vec<String>, train: Arc<dyn Dataset>, validation: Arc<dyn Dataset>) -> Self {
        TrainingData {
            train,
            validation,
            test: None,
            task: TaskKind::Classification,
            classes,
            kind: DataKind::Folder,
            layout: DataLayout::ClassFolders,
            has_parts: true,
            split: None,
            warnings: Vec::new(),
            left_out: LeftOut::default(),
            augment: None,
        }
    }

    /// The same with a test part, labelled by the same classes.
    pub fn with_test(self, test: Arc<dyn Dataset>) -> Self {
        TrainingData { test: Some(test), ..self }
    }

    /// The same with other transforms of training images. `augment` receives those of kind and configuration, and
    /// extends them or begins a new list.
    pub fn with_augmentation(self, augment: impl Fn(TrainTransform) -> TrainTransform + Send + Sync + 'static) -> Self {
        TrainingData { augment: Some(Arc::new(augment)), ..self }
    }

    /// Opens the data in `root` ([`enmasse_datasets::open`]): a known data set, images to be split, or images in parts.
    ///
    /// # Errors
    /// Those of [`enmasse_datasets::open`].
    pub fn open(root: &Path, options: &OpenOptions) -> Result<Self, TrainError> {
        let opened = enmasse_datasets::open(root, options)?;
        Ok(TrainingData {
            kind: opened.kind,
            task: opened.task,
            layout: opened.layout,
            has_parts: opened.has_parts,
            left_out: opened.split.as_ref().map(Split::left_out).unwrap_or_default(),
            split: opened.split,
            warnings: opened.warnings,
            test: opened.test,
            ..Self::of_classes(opened.classes, opened.train, opened.validation)
        })
    }

    /// The same files as in an earlier run.
    ///
    /// # Errors
    /// A label or a target of the record is none of its task or classes. Files that are gone are not looked for.
    pub fn from_record(root: &Path, record: SplitRecord, options: &OpenOptions) -> Result<Self, TrainError> {
        let is_manifest = root.is_file();
        let root = folder_of(root, options);
        let (task, classes) = (record.task, record.classes);
        let part = |files, labels, targets: Option<Vec<Vec<f32>>>| match task {
            TaskKind::Classification => Folder::from_lists(&root, classes.clone(), files, labels),
            _ => Folder::from_targets(&root, task, classes.clone(), files, &targets.unwrap_or_default()),
        };
        let train = part(record.train, record.train_labels, record.train_targets)?;
        let val = part(record.validation, record.validation_labels, record.validation_targets)?;
        let test = record.test.map(|files| part(files, record.test_labels, record.test_targets)).transpose()?;
        let split = Split { train, val, test }.read_with(options.reading);
        let mut parts = Self::of_classes(classes, Arc::new(split.train.clone()), Arc::new(split.val.clone()));
        parts.test = split.test.clone().map(|test| Arc::new(test) as Arc<dyn Dataset>);
        let layout = match &options.label_pattern {
            Some(_) => DataLayout::NamedImages,
            None if is_manifest => DataLayout::Manifest,
            None => DataLayout::ClassFolders,
        };
        Ok(TrainingData { task, split: Some(split), layout, ..parts })
    }

    /// The parts with their names: `training`, `validation` and, if there is one, `test`.
    pub fn parts(&self) -> impl Iterator<Item = (&'static str, &Arc<dyn Dataset>)> {
        let test = self.test.iter().map(|test| ("test", test));
        [("training", &self.train), ("validation", &self.validation)].into_iter().chain(test)
    }

    /// The number of samples of each class, or with each label, in one of the parts. Of numbers it is the number of all samples.
    pub fn class_counts(&self, part: &dyn Dataset) -> Vec<usize> {
        let mut counts = vec![0; self.classes.len()];
        for index in 0..part.len() {
            match self.task {
                TaskKind::Classification => {}
                TaskKind::MultiLabel => {
                    counts
                        .iter_mut()
                        .zip(part.targets(index))
                        .for_each(|(count, label)| *count += usize::from(label > 0.0));
                    continue;
                }
                TaskKind::Regression => {
                    counts.iter_mut().for_each(|count| *count += 1);
                    continue;
                }
            }
            // A label beyond the classes is an error of the data set, which its first batch reports.
            if let Some(count) = counts.get_mut(part.label(index)) {
                *count += 1;
            }
        }
        counts
    }

    /// Whether one class has more than three times as many images for training as another. Labels may be as rare as they are.
    pub fn is_unbalanced(&self) -> bool {
        self.task == TaskKind::Classification
            && differ(self.class_counts(self.train.as_ref()).into_iter().map(|count| count as u64))
    }

    /// The classes or labels without an image in the validation part, which nothing evaluates.
    pub fn unvalidated_classes(&self) -> Vec<&str> {
        let classes = self.class_counts(self.validation.as_ref()).into_iter().zip(&self.classes);
        classes.filter(|(count, _)| *count == 0).map(|(_, class)| class.as_str()).collect()
    }

    /// What decides which settings have an effect on these data.
    pub fn surroundings(&self, is_padded: bool, is_launched: bool, is_single: bool) -> Surroundings {
        let has_blocks = self.train.locality().is_some_and(|locality| locality.blocks().is_some());
        Surroundings {
            kind: self.kind,
            task: self.task,
            layout: self.layout,
            has_blocks,
            has_parts: self.has_parts,
            is_padded,
            is_launched,
            is_single,
        }
    }

    /// Checks that every label of a part is one of the classes, if these are to be predicted. The error names the first sample with
    /// another.
    pub(crate) fn check_labels(&self, task: &dyn Task, part: &str, dataset: &dyn Dataset) -> Result<(), TrainError> {
        let classes = match task.target() {
            TargetKind::Class => task.outputs(),
            TargetKind::Values(_) => return Ok(()),
        };
        match (0..dataset.len()).find(|&index| dataset.label(index) >= classes) {
            None => Ok(()),
            Some(index) => {
                let label = dataset.label(index);
                let problem = format!("the {part} data label it {label}, but there are {classes} classes, from 0");
                Err(DataError::of_sample(dataset, index, problem).into())
            }
        }
    }

    /// Bytes that reading an image of any part takes at its peak.
    pub(crate) fn reading_bytes(&self, pool: &DecodePool) -> Result<usize, DataError> {
        self.parts().try_fold(0, |most, (_, part)| Ok(most.max(pool.reading_bytes(part)?)))
    }

    /// Bytes that the data set keeps of what it has read. The parts of one keep it together.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.parts().filter_map(|(_, part)| Some(part.locality()?.kept_bytes())).max().unwrap_or(0)
    }

    /// Bytes that loaders fetch ahead at a time.
    pub(crate) fn ahead_bytes(&self) -> usize {
        if self.parts().any(|(_, part)| part.locality().is_some_and(|locality| locality.is_remote())) {
            AHEAD_BYTES
        } else {
            0
        }
    }
}

/// Classes and samples as text, one per line. Data sets that have fingerprints stand for themselves by these.
pub(crate) struct Listing<'a> {
    classes: Vec<String>,
    parts: Vec<(&'static str, &'a dyn Dataset)>,
}

impl<'a> Listing<'a> {
    /// All parts of a run's data.
    pub fn of(data: &'a TrainingData) -> Self {
        let mut listing = Self::of_training(data);
        listing.parts.extend(data.test.iter().map(|test| ("test", test.as_ref())));
        listing
    }

    /// The parts that decide what a run learns. A resumed run must have the same; a test part may be added later.
    pub fn of_training(data: &'a TrainingData) -> Self {
        let parts = vec![("train", data.train.as_ref()), ("validation", data.validation.as_ref())];
        Listing { classes: data.classes.clone(), parts }
    }

    /// The one part that is evaluated.
    pub fn evaluated(classes: &[String], dataset: &'a dyn Dataset) -> Self {
        Listing { classes: classes.to_vec(), parts: vec![("evaluated", dataset)] }
    }

    /// The BLAKE3 hash of the text.
    pub fn hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        self.each_piece(&mut |piece| {
            hasher.update(piece.as_bytes());
        });
        hasher.finalize().to_hex().to_string()
    }
}

/// A million samples are a hundred megabytes of text, which is never in memory at once.
impl ComparedText for Listing<'_> {
    fn each_piece(&self, piece: &mut dyn FnMut(&str)) {
        for class in &self.classes {
            piece(&format!("class {class}\n"));
        }
        for (part, dataset) in &self.parts {
            if let Some(fingerprint) = dataset.locality().and_then(|locality| locality.fingerprint()) {
                piece(&format!("{part} {fingerprint}\n"));
                continue;
            }
            for index in 0..dataset.len() {
                let targets: String = dataset.targets(index).iter().map(|value| format!(" {value}")).collect();
                piece(&format!("{part} {} {}{targets}\n", dataset.label(index), dataset.name(index)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A resumed run trains on what the first one had, also where the table has changed since.
    #[test]
    fn labels_and_numbers_come_back_from_a_record() {
        let check = |rows: &str, task: TaskKind, counts: &[usize], unvalidated: &[&str]| {
            let folder = tempfile::tempdir().unwrap();
            let table = folder.path().join("table.csv");
            fs::write(&table, rows).unwrap();
            fs::write(folder.path().join("a.jpg"), b"").unwrap();
            let data = TrainingData::open(&table, &OpenOptions::default()).unwrap();
            let text = serde_json::to_string(data.split.as_ref().unwrap()).unwrap();
            let record = serde_json::from_str(&text).unwrap();
            let again = TrainingData::from_record(&table, record, &OpenOptions::default()).unwrap();
            assert_eq!((data.task, again.task, &again.classes), (task, task, &data.classes));
            assert_eq!((again.layout, Listing::of(&again).hash()), (data.layout, Listing::of(&data).hash()));
            for data in [data, again] {
                assert_eq!(data.class_counts(data.train.as_ref()), counts);
                assert_eq!((data.unvalidated_classes().as_slice(), data.is_unbalanced()), (unvalidated, false));
            }
        };
        let labels = "path,labels,split\na.jpg,x|y,train\nb.jpg,y,train\nc.jpg,,train\nd.jpg,y,val\n";
        check(labels, TaskKind::MultiLabel, &[1, 2], &["x"]);
        let numbers = "path,label,split\na.jpg,0.1,train\nb.jpg,3,train\nc.jpg,-2e-7,train\nd.jpg,4,val\n";
        check(numbers, TaskKind::Regression, &[3], &[]);
        let classes = "path,label,split\na.jpg,x,train\nb.jpg,y,train\nc.jpg,y,val\n";
        check(classes, TaskKind::Classification, &[1, 1], &["x"]);
    }
}
