//! What was found before it is known whether its parts are wanted or all of it, and what parts must fulfil.

use std::path::Path;
use std::sync::Arc;

use enmasse_data::{DataError, Dataset};

use super::class_folders;
use super::nothing::find_manifest;
use crate::split::{Divide, Scanned, draw_as_python, draw_seeded};
use crate::{DataKind, LeftOut, OpenData, OpenOptions, Split, SplitKind, TaskKind, WholeData};

/// A data set of any format.
pub(super) trait Found {
    /// Its parts. That for validation is sampled if it has none of its own.
    fn in_parts(self: Box<Self>, options: &OpenOptions) -> Result<OpenData, DataError>;

    /// All of it, or the part that it holds out itself.
    fn whole(self: Box<Self>, options: &OpenOptions) -> Result<WholeData, DataError>;
}

/// Data that always come in parts.
impl Found for OpenData {
    fn in_parts(self: Box<Self>, _: &OpenOptions) -> Result<OpenData, DataError> {
        Ok(*self)
    }

    fn whole(self: Box<Self>, _: &OpenOptions) -> Result<WholeData, DataError> {
        Ok(WholeData {
            kind: self.kind,
            task: self.task,
            dataset: self.validation,
            classes: self.classes,
            is_held_out: true,
            layout: self.layout,
            left_out: LeftOut::default(),
            warnings: self.warnings,
        })
    }
}

impl<S: Divide + 'static> Found for Scanned<S> {
    fn in_parts(mut self: Box<Self>, options: &OpenOptions) -> Result<OpenData, DataError> {
        let layout = self.layout;
        let folder = self.folder.clone();
        let warnings = std::mem::take(&mut self.warnings);
        let Parts { train, validation, test, sampled } = divide(*self, options)?;
        Ok(OpenData {
            kind: DataKind::Folder,
            task: train.task(),
            layout,
            folder,
            classes: train.classes().to_vec(),
            split: S::lists(&train, &validation, test.as_ref()),
            train: Arc::new(train),
            validation: Arc::new(validation),
            test: test.map(|test| Arc::new(test) as Arc<dyn Dataset>),
            has_parts: !sampled,
            warnings,
        })
    }

    fn whole(self: Box<Self>, options: &OpenOptions) -> Result<WholeData, DataError> {
        if let [others @ .., last] = self.folders.as_slice() {
            let example = self.folder.join(self.folders.get(1).unwrap_or(last));
            let others = others.join("/, ");
            let example = example.display();
            let problem = format!("holds {others}/ and {last}/; name the one to evaluate, such as {example}");
            return Err(DataError::layout(self.folder, problem));
        }
        let is_held_out = self.held_out.is_some();
        let dataset = self.held_out.unwrap_or(self.train).read_with(options.reading);
        Ok(WholeData {
            kind: DataKind::Folder,
            task: dataset.task(),
            classes: dataset.classes().to_vec(),
            left_out: dataset.left_out(),
            dataset: Arc::new(dataset),
            is_held_out,
            layout: self.layout,
            warnings: self.warnings,
        })
    }
}

/// The parts of a data set, with the same classes.
struct Parts<S> {
    train: S,
    validation: S,
    test: Option<S>,
    /// Whether the validation part was sampled from the training part.
    sampled: bool,
}

/// The parts; that for validation is sampled if need be. Fails with fewer than two classes, where images have one, or if
/// nothing would be left for validation.
fn divide<S: Divide>(scanned: Scanned<S>, options: &OpenOptions) -> Result<Parts<S>, DataError> {
    let (root, sampled) = (scanned.folder.as_path(), scanned.held_out.is_none());
    let (seed, fraction) = (options.split_seed, options.val_fraction);
    let (train, validation) = match (scanned.held_out, options.split) {
        (Some(held_out), _) => (scanned.train, held_out),
        (None, SplitKind::Seeded) => draw_seeded(&scanned.train, seed, fraction)?,
        (None, SplitKind::Python) => draw_as_python(&scanned.train, seed, fraction)?,
    };
    if let ([only], TaskKind::Classification) = (train.classes(), train.task()) {
        let inside = root.join(only);
        let hint = match find_manifest(root) {
            _ if inside.is_dir() && class_folders::scan(&inside).is_ok() => {
                format!("; if its folders are the classes, name {}", inside.display())
            }
            Some(table) => format!("; if {table} lists images and their classes, name it"),
            None => String::new(),
        };
        let problem = format!("only one class ({only}); a classifier needs at least two{hint}");
        return Err(DataError::layout(root, problem));
    }
    if validation.len() == 0 {
        let problem = format!(
            "too few images{} to hold out {fraction} of them for validation; add images, or a validation part of its own",
            if train.task() == TaskKind::Classification { " per class" } else { "" }
        );
        return Err(DataError::layout(root, problem));
    }
    let [train, validation] = [train, validation].map(|part| part.read_with(options.reading));
    Ok(Parts { train, validation, test: scanned.test.map(|test| test.read_with(options.reading)), sampled })
}

impl Split {
    /// Opens a folder with `train/` and `val/` (or `test/`), or splits a folder of class folders with
    /// [`Folder::split`](crate::Folder::split).
    ///
    /// # Errors
    /// A folder cannot be read or is not laid out so, there are fewer than two classes, nothing would be left for
    /// validation, or `val_fraction` is not at least 0 and below 1.
    pub fn open(root: impl AsRef<Path>, split_seed: u64, val_fraction: f64) -> Result<Split, DataError> {
        Self::open_with(root.as_ref(), &OpenOptions { split_seed, val_fraction, ..OpenOptions::default() })
    }

    /// The same with all options. Folders `train/` and `val/` are used as they are, whatever the requested split.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_with(root: &Path, options: &OpenOptions) -> Result<Split, DataError> {
        let parts = divide(class_folders::scan(root)?, options)?;
        Ok(Split { train: parts.train, val: parts.validation, test: parts.test })
    }
}
