//! Opens data, whatever they are: packed files, the known data sets by their files, other folders by
//! their layout, objects on servers by their addresses. Each format is a file of this folder and a
//! line of [`FORMATS`].

mod cells;
mod class_folders;
mod classes;
mod found;
mod imagenet;
mod kaggle;
mod known;
mod manifest;
mod named_images;
mod nothing;
mod packed_file;
#[cfg_attr(not(feature = "parquet"), path = "no_parquet.rs")]
mod parquet;
mod parts;
mod pieces;
mod shards;
mod source;
mod table;

use std::path::{Path, PathBuf};

use enmasse_data::DataError;
use enmasse_remote::is_remote;

use crate::scan::has_extension;
use crate::{DataLayout, OpenData, OpenOptions, TaskKind, Unlabelled, WholeData};
use found::Found;
pub(crate) use imagenet::is_same_class;
pub use kaggle::tables_above;
use nothing::nothing_found;
pub use packed_file::is_packed;
use pieces::is_pattern;
use source::Source;

/// The extension of Parquet files.
const PARQUET: &str = "parquet";

/// Opens what a source names, from the files that were recognised.
type Open<T> = fn(&Source, Vec<PathBuf>) -> Result<T, DataError>;

/// A way in which data sets lie in files.
struct Format {
    /// Extensions of its files' names.
    extensions: &'static [&'static str],
    /// The files, or the folder, of this format that a source names; nothing if it is of another one.
    recognise: fn(&Source) -> Result<Vec<PathBuf>, DataError>,
    /// Lists the samples of what was recognised, and reads no image.
    open: Open<Box<dyn Found>>,
    /// The same without labels. `None` for formats whose images are found without any, in folders.
    images: Option<Open<Unlabelled>>,
}

/// All formats. A source is of the first one that recognises it.
const FORMATS: [Format; 8] = [
    packed_file::FORMAT,
    manifest::FORMAT,
    named_images::FORMAT,
    known::FORMAT,
    kaggle::FORMAT,
    class_folders::FORMAT,
    shards::FORMAT,
    parquet::FORMAT,
];

/// Opens the data set in the folder or file `root`, or at this address.
///
/// CIFAR-10 and CIFAR-100 (binary and Python layouts), MNIST and Fashion-MNIST (also compressed) are recognised by
/// their files, in `root` itself or in the places below torchvision's `root`, and so is ImageNet in Kaggle's layout. Anything
/// else is read as class folders ([`Split`](crate::Split)), unless [`OpenOptions::label_pattern`] says otherwise, and a file as
/// a manifest. Images of CIFAR and MNIST are held in memory: 185 MB and 55 MB.
///
/// # Errors
/// The data cannot be read, are of no format that is known or are not as it has them, or have no images for training or
/// for validation; or an option does not fit them.
pub fn open(root: &Path, options: &OpenOptions) -> Result<OpenData, DataError> {
    let source = Source::of(root, options)?;
    let mut data = find(&source)?.in_parts(options)?;
    check_task(root, options, data.task, data.layout)?;
    data.warnings.extend(source.storage.warnings());
    Ok(data)
}

/// Opens all of `root`, where [`open`] would draw a part for validation. Of data that come in parts it is the part for
/// validation.
///
/// # Errors
/// Those of [`open`]. Or the data come in parts that are folders, which can be named.
pub fn open_whole(root: &Path, options: &OpenOptions) -> Result<WholeData, DataError> {
    let source = Source::of(root, options)?;
    let mut data = find(&source)?.whole(options)?;
    check_task(root, options, data.task, data.layout)?;
    data.warnings.extend(source.storage.warnings());
    Ok(data)
}

/// Fails if another task was asked for than the data can have.
fn check_task(root: &Path, options: &OpenOptions, found: TaskKind, layout: DataLayout) -> Result<(), DataError> {
    let Some(asked) = options.task.filter(|asked| *asked != found) else { return Ok(()) };
    let remedy = match layout {
        DataLayout::PackedFile => "pack the data again with that task",
        _ => "name a table of images (.csv, .tsv, .jsonl, .parquet) that has them",
    };
    let problem =
        format!("it has {} of each image, not {} as `task = {asked}` asks for; {remedy}", found.known(), asked.known());
    Err(DataError::layout(root, problem))
}

fn find(source: &Source) -> Result<Box<dyn Found>, DataError> {
    for format in &FORMATS {
        let files = (format.recognise)(source)?;
        if !files.is_empty() {
            return (format.open)(source, files);
        }
    }
    Err(nothing_found(source))
}

/// Whether `path` names a data set rather than images: a packed file, a manifest, an archive, a Parquet file, a pattern of these,
/// a folder that holds archives or Parquet files, or an address.
pub fn holds_unlabelled(path: &Path) -> bool {
    if is_remote(path) || (!path.exists() && is_pattern(path)) {
        return true;
    }
    let options = OpenOptions::default();
    let Ok(source) = Source::of(path, &options) else { return false };
    let formats = FORMATS.iter().filter(|format| format.images.is_some());
    formats.map(|format| (format.recognise)(&source)).any(|found| found.is_ok_and(|files| !files.is_empty()))
}

/// Opens all images of a data set for which [`holds_unlabelled`] holds.
///
/// # Errors
/// The data cannot be read, are of no format whose images are found without labels, or are not as it has them.
pub fn open_unlabelled(path: &Path, options: &OpenOptions) -> Result<Unlabelled, DataError> {
    let source = Source::of(path, options)?;
    for format in &FORMATS {
        let Some(images) = format.images else { continue };
        let files = (format.recognise)(&source)?;
        if !files.is_empty() {
            let found = images(&source, files)?;
            return Ok(Unlabelled { warnings: source.storage.warnings(), ..found });
        }
    }
    Err(nothing_found(&source))
}

/// Whether `root` holds one of the known data sets, which come in two parts, rather than class folders.
pub fn holds_known_set(root: &Path) -> bool {
    !known::layouts_in(root).is_empty()
}

/// Whether `root` is one file or folder with all of the data: not a manifest, whose images lie elsewhere, and not a pattern that
/// names several archives.
pub fn is_self_contained(root: &Path) -> bool {
    let is_manifest = root.is_file() && has_extension(&root.to_string_lossy(), &manifest::EXTENSIONS);
    !is_manifest && (root.exists() || !is_pattern(root))
}

/// The folder from which the paths of files in a [`Split`](crate::Split) of `root` begin.
pub fn folder_of(root: &Path, options: &OpenOptions) -> PathBuf {
    if root.is_file() {
        return manifest::folder_of(root, options);
    }
    kaggle::data_folder(root).unwrap_or_else(|| root.to_owned())
}
