//! The known data sets, which are recognised by their files: a table of these, and what to read them with.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use enmasse_data::DataError;

use super::Format;
use super::source::Source;
use crate::packed::Packed;
use crate::{DataKind, DataLayout, OpenData, TaskKind, cifar, idx};

pub(super) const FORMAT: Format = Format {
    extensions: &[],
    recognise: |source| match source.is_folder() {
        true => Ok(layouts_in(source.root).into_iter().map(|(_, folder)| folder).collect()),
        false => Ok(Vec::new()),
    },
    open: |source, _| Ok(Box::new(open(source)?)),
    images: None,
};

/// The file layout of a known data set.
pub(super) struct Layout {
    pub(super) kind: DataKind,
    form: Form,
    /// Where torchvision and the archives put it below the folder that users name.
    pub(super) below: &'static [&'static str],
    /// Its files: training part, test part, and the names of the classes if there is such a file.
    pub(super) files: &'static [&'static str],
    /// The authors' page.
    pub(super) page: &'static str,
}

#[derive(Clone, Copy, PartialEq)]
enum Form {
    Cifar10Binary,
    Cifar10Python,
    Cifar100Binary,
    Cifar100Python,
    Idx,
}

const CIFAR_PAGE: &str = "https://www.cs.toronto.edu/~kriz/cifar.html";

/// If a data set exists in two layouts, the first one is read.
pub(super) const LAYOUTS: [Layout; 6] = [
    Layout {
        kind: DataKind::Cifar10,
        form: Form::Cifar10Binary,
        below: &["", "cifar-10-batches-bin"],
        files: &[
            "data_batch_1.bin",
            "data_batch_2.bin",
            "data_batch_3.bin",
            "data_batch_4.bin",
            "data_batch_5.bin",
            "test_batch.bin",
            "batches.meta.txt",
        ],
        page: CIFAR_PAGE,
    },
    Layout {
        kind: DataKind::Cifar10,
        form: Form::Cifar10Python,
        below: &["", "cifar-10-batches-py"],
        files: &[
            "data_batch_1",
            "data_batch_2",
            "data_batch_3",
            "data_batch_4",
            "data_batch_5",
            "test_batch",
            "batches.meta",
        ],
        page: CIFAR_PAGE,
    },
    Layout {
        kind: DataKind::Cifar100,
        form: Form::Cifar100Binary,
        below: &["", "cifar-100-binary"],
        files: &["train.bin", "test.bin", "fine_label_names.txt"],
        page: CIFAR_PAGE,
    },
    Layout {
        kind: DataKind::Cifar100,
        form: Form::Cifar100Python,
        below: &["", "cifar-100-python"],
        files: &["train", "test", "meta"],
        page: CIFAR_PAGE,
    },
    Layout {
        kind: DataKind::FashionMnist,
        form: Form::Idx,
        below: &["FashionMNIST/raw"],
        files: &idx::FILES,
        page: "https://github.com/zalandoresearch/fashion-mnist",
    },
    Layout {
        kind: DataKind::Mnist,
        form: Form::Idx,
        below: &["", "raw", "MNIST/raw"],
        files: &idx::FILES,
        page: "http://yann.lecun.com/exdb/mnist/",
    },
];

impl Layout {
    /// The file `name` in `folder`, under any of its spellings.
    fn locate(&self, folder: &Path, name: &str) -> Option<PathBuf> {
        let names = if self.form == Form::Idx { idx::spellings(name) } else { vec![name.to_owned()] };
        names.into_iter().map(|name| folder.join(name)).find(|path| path.is_file())
    }

    /// Whether `folder` is meant to hold this set. A single file may have one of the names by chance.
    fn is_in(&self, folder: &Path) -> bool {
        self.files.iter().filter(|name| self.locate(folder, name).is_some()).count() >= 2
    }

    /// Reads both parts. The content decides which of the two sets in idx files it is.
    fn read(&self, folder: &Path) -> Result<(DataKind, Packed, Packed), DataError> {
        let (mut paths, mut missing) = (Vec::new(), Vec::new());
        for &name in self.files {
            match self.locate(folder, name) {
                Some(path) => paths.push(path),
                None => missing.push(name),
            }
        }
        if !missing.is_empty() {
            let problem = format!(
                "{} is incomplete: {} not found; get it from {}",
                self.kind.name(),
                missing.join(", "),
                self.page
            );
            return Err(DataError::layout(folder, problem));
        }
        match (self.form, paths.as_slice()) {
            (Form::Cifar10Binary, [train @ .., test, names]) => {
                let classes = cifar::class_names(names, 10)?;
                let part = |files: &[PathBuf]| cifar::binary(files, 1, &classes);
                Ok((self.kind, part(train)?, part(std::slice::from_ref(test))?))
            }
            (Form::Cifar10Python, [train @ .., test, meta]) => {
                let classes = cifar::pickled_class_names(meta, "label_names", 10)?;
                let part = |files: &[PathBuf]| cifar::python(files, "labels", &classes);
                Ok((self.kind, part(train)?, part(std::slice::from_ref(test))?))
            }
            (Form::Cifar100Python, [train, test, meta]) => {
                let classes = cifar::pickled_class_names(meta, "fine_label_names", 100)?;
                let part = |file: &PathBuf| cifar::python(std::slice::from_ref(file), "fine_labels", &classes);
                Ok((self.kind, part(train)?, part(test)?))
            }
            (Form::Cifar100Binary, [train, test, names]) => {
                let classes = cifar::class_names(names, 100)?;
                // The first label of each record is the coarse one.
                let part = |file: &PathBuf| cifar::binary(std::slice::from_ref(file), 2, &classes);
                Ok((self.kind, part(train)?, part(test)?))
            }
            (Form::Idx, paths) => idx::read(paths, self.kind),
            (Form::Cifar10Binary | Form::Cifar10Python | Form::Cifar100Binary | Form::Cifar100Python, paths) => {
                let problem = format!("{} is not read from {} files", self.kind.name(), paths.len());
                Err(DataError::layout(folder, problem))
            }
        }
    }
}

fn open(source: &Source) -> Result<OpenData, DataError> {
    let found = layouts_in(source.root);
    let Some((layout, folder)) = found.first() else {
        return Err(DataError::layout(source.root, "its files were removed while it was opened"));
    };
    if let Some((other, below)) = found.iter().find(|(other, _)| other.kind != layout.kind) {
        let (one, two) = (layout.kind.name(), other.kind.name());
        let problem = format!(
            "it has both {one} and {two}: give the folder of one of them, {} or {}",
            folder.display(),
            below.display()
        );
        return Err(DataError::layout(source.root, problem));
    }
    let (kind, train, validation) = layout.read(folder)?;
    Ok(OpenData {
        kind,
        task: TaskKind::Classification,
        layout: DataLayout::Known(kind),
        folder: folder.clone(),
        classes: train.classes().to_vec(),
        train: Arc::new(train),
        validation: Arc::new(validation),
        test: None,
        has_parts: true,
        split: None,
        warnings: Vec::new(),
    })
}

/// Every known data set in `root` or in the usual places below it, with its folder.
pub(super) fn layouts_in(root: &Path) -> Vec<(&'static Layout, PathBuf)> {
    let places = LAYOUTS.iter().flat_map(|layout| layout.below.iter().map(move |below| (layout, below)));
    places
        .map(|(layout, below)| (layout, if below.is_empty() { root.to_owned() } else { root.join(below) }))
        .filter(|(layout, folder)| layout.is_in(folder))
        .collect()
}
