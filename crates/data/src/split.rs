//! Training and validation parts: by folders `train/` and `val/`, or by lot per class.

use std::path::Path;

use enmasse_tensor::RandomStream;

use crate::{DataError, Dataset, Folder};

/// The two parts of a data set; both know the same classes.
#[derive(Clone, Debug)]
pub struct Split {
    /// What the model learns from.
    pub train: Folder,
    /// What it is judged by.
    pub val: Folder,
}

impl Split {
    /// Opens a folder with `train/` and `val/` (or `test/`), or splits a folder of class folders with
    /// [`Folder::split`]. Fails with fewer than two classes, or when nothing would be left to validate with.
    pub fn open(root: impl AsRef<Path>, split_seed: u64, val_fraction: f64) -> Result<Split, DataError> {
        let root = root.as_ref();
        let held_out = ["val", "test"].into_iter().find(|part| root.join(part).is_dir());
        let split = match held_out.filter(|_| root.join("train").is_dir()) {
            Some(part) => {
                let (train, val) = (Folder::scan_below(root, "train")?, Folder::scan_below(root, part)?);
                same_classes(&train, &val, root, part)?;
                Split { train, val }
            }
            None => Folder::scan(root)?.split(split_seed, val_fraction)?,
        };
        if let [only] = split.train.classes() {
            return Err(DataError::layout(root, format!("only one class ({only}); a classifier needs at least two")));
        }
        if split.val.is_empty() {
            let problem = format!(
                "too few pictures per class to hold out {val_fraction} of them for validation; add pictures, or make train/ and val/ folders"
            );
            return Err(DataError::layout(root, problem));
        }
        Ok(split)
    }

    /// Whether pictures of both parts that are not RGB are converted; see [`Folder::convert_rgb`].
    pub fn convert_rgb(self, convert: bool) -> Self {
        Split { train: self.train.convert_rgb(convert), val: self.val.convert_rgb(convert) }
    }
}

impl Folder {
    /// Holds out ⌊n · `val_fraction`⌋ of each class's n pictures, drawn by `split_seed` and the class's name alone: other
    /// classes, the training seed and the machine do not change the draw. A class with one picture keeps it for training.
    pub fn split(&self, split_seed: u64, val_fraction: f64) -> Result<Split, DataError> {
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
            let order = RandomStream::new(split_seed, &format!("split {class}"), 0, 0).permutation(own.len());
            for &position in &order[..count] {
                held[own[position]] = true;
            }
        }
        Ok(Split { train: self.part(|index| !held[index]), val: self.part(|index| held[index]) })
    }
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
