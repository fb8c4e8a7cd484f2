//! The parts of one data set, and a random draw per class; of labels and numbers see [`crate::stratify`].
//!
//! A format lists its samples once ([`Scanned`]): all of them, or its parts. What follows is the
//! same for each: the draw of a validation part, labels by another model's classes (`relabel`),
//! what `eval` evaluates. A run keeps a list of files in `split.json`. Archives are opened again
//! and split by the same rule.

use std::path::{Path, PathBuf};

use enmasse_data::{DataError, Dataset, PythonRandom};
use enmasse_image::decode::ReadOptions;
use enmasse_tensor::RandomStream;
use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

use crate::stratify;
use crate::targets::Targets;
use crate::{DataLayout, DataWarning, Folder, LeftOut, TaskKind};

/// Whose random draw decides which images of a folder are for validation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum SplitKind {
    /// enmasse's own: see [`Folder::split`]. Of images with several labels each label has its share, and of those with numbers each
    /// tenth in the order of the first number.
    #[default]
    Seeded,
    /// CPython's, as in the tutorials: see [`Folder::split_as_python`].
    Python,
}

/// The parts of a data set, with the same classes.
#[derive(Clone, Debug)]
pub struct Split {
    /// The training part.
    pub train: Folder,
    /// The validation part.
    pub val: Folder,
    /// The test part, if the data have one besides the validation part.
    pub test: Option<Folder>,
}

impl Split {
    /// How the files of all parts become RGB pixels.
    pub fn read_with(self, options: ReadOptions) -> Self {
        let [train, val] = [self.train, self.val].map(|part| part.read_with(options));
        Split { train, val, test: self.test.map(|test| test.read_with(options)) }
    }

    /// What the scan of all parts found and could not use.
    pub fn left_out(&self) -> LeftOut {
        let mut left_out = self.train.left_out().clone();
        for part in std::iter::once(&self.val).chain(&self.test) {
            left_out.append(part.left_out().clone());
        }
        left_out
    }
}

/// The lists of all parts, as a run keeps them: `classes`, `train`, `validation` and, if there is one, `test`; and the labels of
/// a part unless each image's last folder has the name of its class. Of images with several labels, or with numbers, it is the
/// task and the list of each image's. Nothing is copied for it.
impl Serialize for Split {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Files<'a>(&'a Folder);
        impl Serialize for Files<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_seq(self.0.files())
            }
        }
        let parts = [
            ("train", "train_labels", "train_targets", &self.train),
            ("validation", "validation_labels", "validation_targets", &self.val),
        ];
        let test = self.test.iter().map(|test| ("test", "test_labels", "test_targets", test));
        let mut split = serializer.serialize_struct("Split", 8)?;
        if self.train.task() != TaskKind::Classification {
            split.serialize_field("task", &self.train.task())?;
        }
        split.serialize_field("classes", self.train.classes())?;
        for (files, labels, targets, part) in parts.into_iter().chain(test) {
            split.serialize_field(files, &Files(part))?;
            match part.own_targets() {
                Some(own) => split.serialize_field(targets, own)?,
                None if part.is_labelled_by_folders() => {}
                None => split.serialize_field(labels, part.labels())?,
            }
        }
        split.end()
    }
}

/// A data set of which a part can be taken.
pub(crate) trait Divide: Dataset + Clone {
    /// Names of the classes by label, of all labels, or of a sample's numbers.
    fn classes(&self) -> &[String];

    /// The labels or numbers of the samples; `None` if each has one class.
    fn own_targets(&self) -> Option<&Targets> {
        None
    }

    /// What a model is to predict of a sample.
    fn task(&self) -> TaskKind {
        self.own_targets().map_or(TaskKind::Classification, Targets::task)
    }

    /// The samples for which `keep` returns true, in the same order.
    fn part(&self, keep: impl Fn(usize) -> bool) -> Self;

    /// How image files become RGB pixels.
    fn read_with(self, options: ReadOptions) -> Self;

    /// Whether the tutorials' split takes sample `index` for an image.
    fn is_known_to_python(&self, _index: usize) -> bool {
        true
    }

    /// The same without what a scan left out, for the second of two parts.
    fn without_left_out(self) -> Self {
        self
    }

    /// What a scan found and could not use.
    fn left_out(&self) -> LeftOut {
        LeftOut::default()
    }

    /// The parts as lists of files, if that is what they are.
    fn lists(_train: &Self, _validation: &Self, _test: Option<&Self>) -> Option<Split> {
        None
    }
}

impl Divide for Folder {
    fn classes(&self) -> &[String] {
        self.classes()
    }

    fn own_targets(&self) -> Option<&Targets> {
        self.own_targets()
    }

    fn part(&self, keep: impl Fn(usize) -> bool) -> Self {
        self.part(keep)
    }

    fn read_with(self, options: ReadOptions) -> Self {
        self.read_with(options)
    }

    fn is_known_to_python(&self, index: usize) -> bool {
        const EXTENSIONS: [&str; 4] = ["jpg", "JPG", "png", "PNG"];
        self.path(index).extension().is_some_and(|own| EXTENSIONS.iter().any(|name| own == *name))
    }

    fn without_left_out(self) -> Self {
        self.with_left_out(LeftOut::default())
    }

    fn left_out(&self) -> LeftOut {
        self.left_out().clone()
    }

    fn lists(train: &Self, validation: &Self, test: Option<&Self>) -> Option<Split> {
        Some(Split { train: train.clone(), val: validation.clone(), test: test.cloned() })
    }
}

/// What lies at a path: one data set, or its parts.
pub(crate) struct Scanned<S> {
    /// The training part, or everything.
    pub train: S,
    /// The part for validation, if there is one of its own.
    pub held_out: Option<S>,
    /// The part for tests, if there is one besides the part for validation.
    pub test: Option<S>,
    /// The folder that contains its files, or the file that was named.
    pub folder: PathBuf,
    /// The folders of the parts, if these can be named instead: first that of the training part.
    pub folders: Vec<String>,
    pub layout: DataLayout,
    /// What the user should know about the data.
    pub warnings: Vec<DataWarning>,
}

impl<S: Divide> Scanned<S> {
    /// A data set that does not come in parts.
    pub fn whole(layout: DataLayout, folder: &Path, train: S) -> Self {
        let folder = folder.to_owned();
        Scanned { train, held_out: None, test: None, folder, folders: Vec::new(), layout, warnings: Vec::new() }
    }
}

pub(crate) fn draw_seeded<S: Divide>(whole: &S, split_seed: u64, val_fraction: f64) -> Result<(S, S), DataError> {
    if let Some(targets) = whole.own_targets() {
        check_fraction(val_fraction)?;
        return Ok(cut(whole, &stratify::held_out(targets, whole.classes(), split_seed, val_fraction)));
    }
    hold_out(whole, val_fraction, |class, own, count| {
        let order = RandomStream::new(split_seed, &format!("split {class}"), 0, 0).permutation(own);
        order.into_iter().take(count).map(|place| place as usize).collect()
    })
}

pub(crate) fn draw_as_python<S: Divide>(whole: &S, split_seed: u64, val_fraction: f64) -> Result<(S, S), DataError> {
    if whole.task() != TaskKind::Classification {
        let problem =
            format!("`split = python` is one of classes, and the data have {}; leave it out", whole.task().known());
        return Err(DataError::Setting(problem));
    }
    let mut random = PythonRandom::new(split_seed);
    let known = whole.part(|index| whole.is_known_to_python(index));
    hold_out(&known, val_fraction, |_, own, count| random.sample(own, count))
}

/// `draw` gets a class's name, its number of images, and the number of positions to return.
fn hold_out<S: Divide>(
    whole: &S,
    val_fraction: f64,
    mut draw: impl FnMut(&str, usize, usize) -> Vec<usize>,
) -> Result<(S, S), DataError> {
    check_fraction(val_fraction)?;
    let mut by_class = vec![Vec::new(); whole.classes().len()];
    for index in 0..whole.len() {
        by_class[whole.label(index)].push(index);
    }
    let mut held = vec![false; whole.len()];
    for (class, own) in whole.classes().iter().zip(by_class) {
        let count = (own.len() as f64 * val_fraction) as usize;
        for position in draw(class, own.len(), count) {
            held[own[position]] = true;
        }
    }
    Ok(cut(whole, &held))
}

fn check_fraction(val_fraction: f64) -> Result<(), DataError> {
    match (0.0..1.0).contains(&val_fraction) {
        true => Ok(()),
        false => Err(DataError::Setting(format!("the validation fraction must lie in [0, 1), not {val_fraction}"))),
    }
}

/// The samples for training, and those that are held out.
fn cut<S: Divide>(whole: &S, held: &[bool]) -> (S, S) {
    (whole.part(|index| !held[index]), whole.part(|index| held[index]).without_left_out())
}

impl Folder {
    /// Holds out ⌊n · `val_fraction`⌋ of each class's n images. The draw depends on `split_seed` and the class's name
    /// alone, not on other classes, the training seed or the machine. A class with one image keeps it for training.
    ///
    /// # Errors
    /// `val_fraction` is not at least 0 and below 1.
    pub fn split(&self, split_seed: u64, val_fraction: f64) -> Result<Split, DataError> {
        draw_seeded(self, split_seed, val_fraction).map(|(train, val)| Split { train, val, test: None })
    }

    /// The split of `random.seed(split_seed)` followed by `random.sample(images, int(n * val_fraction))` for each
    /// class in turn, over sorted names. It considers only images with the extensions `.jpg`, `.JPG`, `.png` and
    /// `.PNG`; others are in neither part.
    ///
    /// Hidden files and folders are skipped here, as everywhere; Python's `os.listdir` would include them.
    ///
    /// # Errors
    /// `val_fraction` is not at least 0 and below 1, or the images have labels or numbers instead of classes.
    pub fn split_as_python(&self, split_seed: u64, val_fraction: f64) -> Result<Split, DataError> {
        draw_as_python(self, split_seed, val_fraction).map(|(train, val)| Split { train, val, test: None })
    }
}
