//! Opens data, whatever they are: packed files, the known data sets by their files, other folders by their layout, objects on
//! servers by their addresses.

pub(crate) mod class_folders;
mod classes;
mod imagenet;
mod known;
mod manifest;
mod nothing;
pub(crate) mod objects;
mod parquet;
mod parts;
mod pieces;
mod shards;
mod table;
mod unlabelled;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use enmasse_data::{DataError, Dataset};
use enmasse_image::decode::ReadOptions;
use enmasse_remote::RemoteOptions;

use crate::packed_file::{self, is_packed};
use crate::parquet::Parquet;
use crate::scan::{has_extension, holds_images};
use crate::shards::Shards;
use crate::split::{Divide, Parts, Scanned};
use crate::storage::Storage;
use crate::{Container, DataKind, DataLayout, DataWarning, Folder, LeftOut, Split, SplitKind};
pub(crate) use imagenet::is_same_class;
pub use imagenet::tables_above;
use known::{Layout, recognise};
pub(crate) use nothing::find_manifest;
use nothing::nothing_found;
pub use unlabelled::{Unlabelled, holds_unlabelled, open_unlabelled};

/// How [`open`] reads data that are not one of the known sets.
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
    /// The column of a manifest or a Parquet file that has the classes. `None` finds it by its name.
    pub label_column: Option<String>,
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
    /// Names of the classes, by label.
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
    /// All of it, or the part that it holds out itself.
    pub dataset: Arc<dyn Dataset>,
    /// Names of the classes, by label.
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

/// What is at a path.
enum Found {
    Known(&'static Layout, PathBuf),
    Files(PathBuf, Box<Scanned<Folder>>),
    Shards(PathBuf, Box<Scanned<Shards>>),
    Parquet(PathBuf, Box<Scanned<Parquet>>),
    Packed(Container),
}

/// Opens the data set in the folder or file `root`, or at this address.
///
/// CIFAR-10 and CIFAR-100 (binary and Python layouts), MNIST and Fashion-MNIST (also compressed) are recognised by
/// their files, in `root` itself or in the places below torchvision's `root`, and so is ImageNet in Kaggle's layout. Anything
/// else is read as class folders ([`Split`]), unless [`OpenOptions::label_pattern`] says otherwise, and a file as a manifest.
/// Images of CIFAR and MNIST are held in memory: 185 MB and 55 MB.
pub fn open(root: &Path, options: &OpenOptions) -> Result<OpenData, DataError> {
    let storage = Storage::of(root, &options.remote)?;
    let mut data = match find(&storage, root, options)? {
        Found::Known(layout, folder) => open_known(layout, folder),
        Found::Files(folder, scanned) => opened(folder, *scanned, options),
        Found::Shards(folder, scanned) => opened(folder, *scanned, options),
        Found::Parquet(folder, scanned) => opened(folder, *scanned, options),
        Found::Packed(container) => packed_file::open(container, options.reading),
    }?;
    data.warnings.extend(storage.warnings());
    Ok(data)
}

/// Opens all of `root`, where [`open`] would draw a part for validation. Of data that come in parts it is the part for
/// validation; if the parts are folders that can be named, that is an error instead.
pub fn open_whole(root: &Path, options: &OpenOptions) -> Result<WholeData, DataError> {
    let storage = Storage::of(root, &options.remote)?;
    let mut data = match find(&storage, root, options)? {
        Found::Known(layout, folder) => Ok(held_out(open_known(layout, folder)?)),
        Found::Files(_, scanned) => {
            let left_out = scanned.held_out.as_ref().unwrap_or(&scanned.train).left_out().clone();
            Ok(WholeData { left_out, ..whole(root, *scanned, options)? })
        }
        Found::Shards(_, scanned) => whole(root, *scanned, options),
        Found::Parquet(_, scanned) => whole(root, *scanned, options),
        Found::Packed(container) => Ok(held_out(packed_file::open(container, options.reading)?)),
    }?;
    data.warnings.extend(storage.warnings());
    Ok(data)
}

/// Whether `root` holds one of the known data sets, which come in two parts, rather than class folders.
pub fn holds_known_set(root: &Path) -> bool {
    !recognise(root).is_empty()
}

/// Whether `root` is one file or folder with all of the data: not a manifest, whose images lie elsewhere, and not a pattern that
/// names several archives.
pub fn is_self_contained(root: &Path) -> bool {
    let is_manifest = root.is_file() && has_extension(&root.to_string_lossy(), &manifest::EXTENSIONS);
    !is_manifest && (root.exists() || !pieces::is_pattern(root))
}

/// The folder from which the paths of files in a [`Split`] of `root` begin.
pub fn folder_of(root: &Path, options: &OpenOptions) -> PathBuf {
    if root.is_file() {
        return manifest::folder_of(root, options);
    }
    imagenet::kaggle_folder(root).unwrap_or_else(|| root.to_owned())
}

fn find(storage: &Storage, root: &Path, options: &OpenOptions) -> Result<Found, DataError> {
    let parent = root.parent().unwrap_or(root);
    if storage.is_remote() {
        return match is_packed(root) {
            true => Ok(Found::Packed(storage.open(root)?)),
            false => find_pieces(storage, objects::files(storage, root)?, root, parent, options),
        };
    }
    if !root.exists() && pieces::is_pattern(root) {
        return find_pieces(storage, pieces::expand(storage, root)?, root, parent, options);
    }
    let metadata = root.metadata().map_err(|source| DataError::read(root, source))?;
    if is_packed(root) {
        return Ok(Found::Packed(storage.open(root)?));
    }
    if !metadata.is_dir() {
        return find_file(storage, root, options);
    }
    if let Some(pattern) = &options.label_pattern {
        return Ok(Found::Files(root.to_owned(), Box::new(class_folders::scan_names(root, pattern)?)));
    }
    let found = recognise(root);
    let Some((layout, folder)) = found.first() else { return find_folders(storage, root, options) };
    if let Some((other, below)) = found.iter().find(|(other, _)| other.kind != layout.kind) {
        let (one, two) = (layout.kind.name(), other.kind.name());
        let problem = format!(
            "it has both {one} and {two}: give the folder of one of them, {} or {}",
            folder.display(),
            below.display()
        );
        return Err(DataError::layout(root, problem));
    }
    Ok(Found::Known(layout, folder.clone()))
}

fn find_file(storage: &Storage, path: &Path, options: &OpenOptions) -> Result<Found, DataError> {
    if has_extension(&path.to_string_lossy(), &manifest::EXTENSIONS) {
        return Ok(Found::Files(path.to_owned(), Box::new(manifest::scan(path, options)?)));
    }
    if has_extension(&path.to_string_lossy(), &[shards::EXTENSION, parquet::EXTENSION]) {
        return find_pieces(storage, vec![path.to_owned()], path, path.parent().unwrap_or(path), options);
    }
    let problem = format!(
        "this is a file; the data must be a folder (an archive must be extracted first), a manifest ({}), a Parquet file, or a tar archive that is not compressed",
        manifest::EXTENSIONS.join(", ")
    );
    Err(DataError::layout(path, problem))
}

fn find_folders(storage: &Storage, root: &Path, options: &OpenOptions) -> Result<Found, DataError> {
    if let Some(folder) = imagenet::kaggle_folder(root) {
        let scanned = imagenet::scan_kaggle(&folder)?;
        return Ok(Found::Files(folder, Box::new(scanned)));
    }
    if holds_images(root)? {
        return Ok(Found::Files(root.to_owned(), Box::new(class_folders::scan(root)?)));
    }
    for extension in [shards::EXTENSION, parquet::EXTENSION] {
        let files = pieces::in_folder(root, extension)?;
        if !files.is_empty() {
            return find_pieces(storage, files, root, root, options);
        }
    }
    Err(nothing_found(root))
}

/// The samples of Parquet files or tar archives. `root` is what the user named, `folder` what the files' parts are named in.
fn find_pieces(
    storage: &Storage,
    files: Vec<PathBuf>,
    root: &Path,
    folder: &Path,
    options: &OpenOptions,
) -> Result<Found, DataError> {
    let path = root.to_owned();
    match files.iter().all(|file| has_extension(&file.to_string_lossy(), &[parquet::EXTENSION])) {
        true => Ok(Found::Parquet(path, Box::new(parquet::scan(storage, files, folder, options)?))),
        false => Ok(Found::Shards(path, Box::new(shards::scan(storage, files, folder, options)?))),
    }
}

fn open_known(layout: &Layout, folder: PathBuf) -> Result<OpenData, DataError> {
    let (kind, train, validation) = layout.read(&folder)?;
    Ok(OpenData {
        kind,
        layout: DataLayout::Known(kind),
        folder,
        classes: train.classes().to_vec(),
        train: Arc::new(train),
        validation: Arc::new(validation),
        test: None,
        has_parts: true,
        split: None,
        warnings: Vec::new(),
    })
}

/// The validation part of data that always come with one.
fn held_out(data: OpenData) -> WholeData {
    WholeData {
        kind: data.kind,
        dataset: data.validation,
        classes: data.classes,
        is_held_out: true,
        layout: data.layout,
        left_out: LeftOut::default(),
        warnings: data.warnings,
    }
}

fn opened<S: Divide + 'static>(
    folder: PathBuf,
    mut scanned: Scanned<S>,
    options: &OpenOptions,
) -> Result<OpenData, DataError> {
    let (layout, warnings) = (scanned.layout, std::mem::take(&mut scanned.warnings));
    let parts = scanned.in_parts(&folder, options)?;
    let split = S::lists(&parts);
    let Parts { train, validation, test, sampled } = parts;
    Ok(OpenData {
        kind: DataKind::Folder,
        layout,
        folder,
        classes: train.classes().to_vec(),
        split,
        train: Arc::new(train),
        validation: Arc::new(validation),
        test: test.map(|test| Arc::new(test) as Arc<dyn Dataset>),
        has_parts: !sampled,
        warnings,
    })
}

fn whole<S: Divide + 'static>(root: &Path, scanned: Scanned<S>, options: &OpenOptions) -> Result<WholeData, DataError> {
    if let [others @ .., last] = scanned.folders.as_slice() {
        let (others, example) = (others.join("/, "), root.join(scanned.folders.get(1).unwrap_or(last)));
        let problem = format!("holds {others}/ and {last}/; name the one to evaluate, such as {}", example.display());
        return Err(DataError::layout(root, problem));
    }
    let (is_held_out, layout, warnings) = (scanned.held_out.is_some(), scanned.layout, scanned.warnings);
    let dataset = scanned.held_out.unwrap_or(scanned.train).read_with(options.reading);
    let classes = dataset.classes().to_vec();
    Ok(WholeData {
        kind: DataKind::Folder,
        dataset: Arc::new(dataset),
        classes,
        is_held_out,
        layout,
        left_out: LeftOut::default(),
        warnings,
    })
}
