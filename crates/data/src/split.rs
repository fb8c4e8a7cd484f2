//! Training and validation parts: by folders `train/` and `val/`, or by a random draw per class.

use std::path::Path;

use enmasse_tensor::RandomStream;
use serde::{Deserialize, Serialize};

use crate::decode::ReadOptions;
use crate::mt19937::PythonRandom;
use crate::{DataError, Dataset, Folder, LeftOut, OpenOptions};

/// Whose random draw decides which pictures of a folder are for validation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SplitKind {
    /// enmasse's own: see [`Folder::split`].
    #[default]
    Seeded,
    /// CPython's, as in the tutorials: see [`Folder::split_as_python`].
    Python,
}

/// The two parts of a data set, with the same classes.
#[derive(Clone, Debug)]
pub struct Split {
    /// The training part.
    pub train: Folder,
    /// The validation part.
    pub val: Folder,
}

impl Split {
    /// Opens a folder with `train/` and `val/` (or `test/`), or splits a folder of class folders with
    /// [`Folder::split`]. Fails with fewer than two classes, or if nothing would be left for validation.
    pub fn open(root: impl AsRef<Path>, split_seed: u64, val_fraction: f64) -> Result<Split, DataError> {
        Self::open_with(root.as_ref(), &OpenOptions { split_seed, val_fraction, ..OpenOptions::default() })
    }

    /// The same with all options. Folders `train/` and `val/` are used as they are, whatever the requested split.
    pub fn open_with(root: &Path, options: &OpenOptions) -> Result<Split, DataError> {
        let &OpenOptions { split_seed, val_fraction, .. } = options;
        let split = match held_out(root) {
            Some(part) => {
                let (train, val) = (Folder::scan_below(root, "train")?, Folder::scan_below(root, part)?);
                same_classes(&train, &val, root, part)?;
                Split { train, val }
            }
            None => {
                let folder = Folder::scan(root)?;
                match options.split {
                    SplitKind::Seeded => folder.split(split_seed, val_fraction)?,
                    SplitKind::Python => folder.split_as_python(split_seed, val_fraction)?,
                }
            }
        };
        if let [only] = split.train.classes() {
            return Err(DataError::layout(root, format!("only one class ({only}); a classifier needs at least two")));
        }
        if split.val.is_empty() {
            let problem = format!(
                "too few pictures per class to hold out {val_fraction} of them for validation; add pictures, or create train/ and val/ folders"
            );
            return Err(DataError::layout(root, problem));
        }
        Ok(split.read_with(options.reading))
    }

    /// How the files of both parts become RGB pixels.
    pub fn read_with(self, options: ReadOptions) -> Self {
        Split { train: self.train.read_with(options), val: self.val.read_with(options) }
    }

    /// What the scan of both parts found and could not use.
    pub fn left_out(&self) -> LeftOut {
        let mut left_out = self.train.left_out().clone();
        left_out.append(self.val.left_out().clone());
        left_out
    }
}

impl Folder {
    /// Holds out ⌊n · `val_fraction`⌋ of each class's n pictures. The draw depends on `split_seed` and the class's name
    /// alone, not on other classes, the training seed or the machine. A class with one picture keeps it for training.
    pub fn split(&self, split_seed: u64, val_fraction: f64) -> Result<Split, DataError> {
        self.hold_out(val_fraction, |class, own, count| {
            let order = RandomStream::new(split_seed, &format!("split {class}"), 0, 0).permutation(own);
            order[..count].to_vec()
        })
    }

    /// The split of `random.seed(split_seed)` followed by `random.sample(pictures, int(n * val_fraction))` for each
    /// class in turn, over sorted names. It considers only pictures with the extensions `.jpg`, `.JPG`, `.png` and
    /// `.PNG`; others are in neither part.
    ///
    /// Hidden files and folders are skipped here, as everywhere; Python's `os.listdir` would include them.
    pub fn split_as_python(&self, split_seed: u64, val_fraction: f64) -> Result<Split, DataError> {
        const EXTENSIONS: [&str; 4] = ["jpg", "JPG", "png", "PNG"];
        let known =
            |file: &str| Path::new(file).extension().is_some_and(|own| EXTENSIONS.iter().any(|name| own == *name));
        let files: Vec<&str> = self.files().collect();
        let mut random = PythonRandom::new(split_seed);
        self.part(|index| known(files[index])).hold_out(val_fraction, |_, own, count| random.sample(own, count))
    }

    /// `draw` gets a class's name, its number of pictures, and the number of positions to return.
    fn hold_out(
        &self,
        val_fraction: f64,
        mut draw: impl FnMut(&str, usize, usize) -> Vec<usize>,
    ) -> Result<Split, DataError> {
        if !(0.0..1.0).contains(&val_fraction) {
            return Err(DataError::Setting(format!("the validation fraction must lie in [0, 1), not {val_fraction}")));
        }
        let mut by_class = vec![Vec::new(); self.classes().len()];
        for index in 0..self.len() {
            by_class[self.label(index)].push(index);
        }
        let mut held = vec![false; self.len()];
        for (class, own) in self.classes().iter().zip(by_class) {
            let count = (own.len() as f64 * val_fraction) as usize;
            for position in draw(class, own.len(), count) {
                held[own[position]] = true;
            }
        }
        Ok(Split { train: self.part(|index| !held[index]), val: self.part(|index| held[index]).without_left_out() })
    }
}

/// The validation folder, if there is one next to `train/`.
pub(crate) fn held_out(root: &Path) -> Option<&'static str> {
    let part = ["val", "test"].into_iter().find(|part| root.join(part).is_dir());
    part.filter(|_| root.join("train").is_dir())
}

fn same_classes(train: &Folder, val: &Folder, root: &Path, part: &str) -> Result<(), DataError> {
    let lacking =
        |these: &Folder, those: &Folder| these.classes().iter().find(|c| !those.classes().contains(c)).cloned();
    let problem = if let Some(class) = lacking(train, val) {
        format!("the class {class:?} is in train/ but not in {part}/; both need the same classes")
    } else if let Some(class) = lacking(val, train) {
        format!("the class {class:?} is in {part}/ but not in train/; both need the same classes")
    } else {
        return Ok(());
    };
    Err(DataError::layout(root, problem))
}
