//! Opens a data folder: the known data sets by their files, anything else as class folders.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::decode::ReadOptions;
use crate::folder::holds_pictures;
use crate::packed::Packed;
use crate::split::held_out;
use crate::{DataError, DataKind, Dataset, Split, SplitKind, cifar, idx};

/// How [`open`] reads a folder of class folders; the other kinds already come in two parts.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenOptions {
    /// Whose random draw decides which pictures are for validation.
    pub split: SplitKind,
    /// The seed of the draw.
    pub split_seed: u64,
    /// The fraction of each class for validation, in [0, 1).
    pub val_fraction: f64,
    /// How picture files become RGB pixels.
    pub reading: ReadOptions,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions { split: SplitKind::Seeded, split_seed: 0, val_fraction: 0.2, reading: ReadOptions::default() }
    }
}

/// An opened data set in its two parts.
#[derive(Clone)]
pub struct OpenData {
    /// The kind of data set.
    pub kind: DataKind,
    /// The folder that contains its files: the given one, or one inside it.
    pub folder: PathBuf,
    /// The training part.
    pub train: Arc<dyn Dataset>,
    /// The validation part; of CIFAR and MNIST the test part.
    pub validation: Arc<dyn Dataset>,
    /// Names of the classes, by label.
    pub classes: Vec<String>,
    /// The two parts as lists of files; only for folders of class folders.
    pub split: Option<Split>,
}

/// Opens the data set in `root`.
///
/// CIFAR-10 and CIFAR-100 (binary and Python layouts), MNIST and Fashion-MNIST (also compressed) are recognised by
/// their files, in `root` itself or in the places below torchvision's `root`. Anything else is read as class folders
/// ([`Split`]). Pictures of the known sets are held in memory: 185 MB for CIFAR, 55 MB for MNIST.
pub fn open(root: &Path, options: &OpenOptions) -> Result<OpenData, DataError> {
    let metadata = root.metadata().map_err(|source| DataError::read(root, source))?;
    if !metadata.is_dir() {
        let problem = "this is a file; the data must be a folder (an archive must be extracted first)";
        return Err(DataError::layout(root, problem));
    }
    let found = recognise(root);
    let Some((layout, folder)) = found.first() else { return open_folder(root, options) };
    if let Some((other, below)) = found.iter().find(|(other, _)| other.kind != layout.kind) {
        let (one, two) = (layout.kind.name(), other.kind.name());
        let problem = format!(
            "it has both {one} and {two}: give the folder of one of them, {} or {}",
            folder.display(),
            below.display()
        );
        return Err(DataError::layout(root, problem));
    }
    let (kind, train, validation) = layout.read(folder)?;
    Ok(OpenData {
        kind,
        folder: folder.clone(),
        classes: train.class_names(),
        train: Arc::new(train),
        validation: Arc::new(validation),
        split: None,
    })
}

/// Whether `root` holds one of the known data sets, which come in two parts, rather than class folders.
pub fn holds_known_set(root: &Path) -> bool {
    !recognise(root).is_empty()
}

/// Whether `root` comes in two parts (a known data set, or folders `train/` and `val/` or `test/`), so that [`open`]
/// draws none.
pub fn has_parts(root: &Path) -> bool {
    holds_known_set(root) || held_out(root).is_some()
}

fn open_folder(root: &Path, options: &OpenOptions) -> Result<OpenData, DataError> {
    if !holds_pictures(root)? {
        return Err(nothing_found(root));
    }
    let split = Split::open_with(root, options)?;
    Ok(OpenData {
        kind: DataKind::Folder,
        folder: root.to_owned(),
        train: Arc::new(split.train.clone()),
        validation: Arc::new(split.val.clone()),
        classes: split.train.classes().to_vec(),
        split: Some(split),
    })
}

/// The file layout of a known data set.
struct Layout {
    kind: DataKind,
    form: Form,
    /// Where torchvision and the archives put it below the folder that users name.
    below: &'static [&'static str],
    /// Its files: training part, test part, and the names of the classes if there is such a file.
    files: &'static [&'static str],
    /// The authors' page.
    page: &'static str,
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
const LAYOUTS: [Layout; 6] = [
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

/// Every known data set in `root` or in the usual places below it, with its folder.
fn recognise(root: &Path) -> Vec<(&'static Layout, PathBuf)> {
    let places = LAYOUTS.iter().flat_map(|layout| layout.below.iter().map(move |below| (layout, below)));
    places
        .map(|(layout, below)| (layout, if below.is_empty() { root.to_owned() } else { root.join(below) }))
        .filter(|(layout, folder)| layout.is_in(folder))
        .collect()
}

/// The error that lists what was looked for, and where to get it.
fn nothing_found(root: &Path) -> DataError {
    let find = |endings: &[&str]| {
        root.read_dir().into_iter().flatten().flatten().find_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            endings.iter().any(|ending| name.ends_with(ending)).then_some(name)
        })
    };
    if let Some(archive) = find(&[".tar.gz", ".tgz", ".tar", ".zip"]) {
        return DataError::layout(
            root,
            format!("it has no data set, only the archive {archive}: extract it there first"),
        );
    }
    if let Some(table) = find(&[".csv", ".tsv", ".parquet"]) {
        let problem = format!(
            "it has no class folders of pictures, and labels are not read from {table}: put the pictures of each class into a folder of its name; several labels of a picture, and numbers as targets, are not supported"
        );
        return DataError::layout(root, problem);
    }
    let known = [DataKind::Cifar10, DataKind::Cifar100, DataKind::Mnist, DataKind::FashionMnist].map(|kind| {
        let layouts = || LAYOUTS.iter().filter(move |layout| layout.kind == kind);
        let files: Vec<&str> = layouts().map(|layout| layout.files[0]).collect();
        let places: Vec<&str> =
            layouts().flat_map(|layout| layout.below).copied().filter(|at| !at.is_empty()).collect();
        let page = layouts().next().map_or("", |layout| layout.page);
        format!("{} ({} …, here or in {}; {page})", kind.name(), files.join(" or "), places.join(" or "))
    });
    let problem = format!("it has no class folders of pictures, and no {}", known.join(", no "));
    DataError::layout(root, problem)
}
