//! Images of data sets whose labels do not count, for predictions: they need have none.

use std::path::Path;
use std::sync::Arc;

use enmasse_data::{DataError, Dataset};
use enmasse_remote::is_remote;

use super::pieces::{expand, in_folder, is_pattern};
use super::{OpenOptions, manifest, objects, parquet, shards};
use crate::packed_file::{self, is_packed};
use crate::scan::has_extension;
use crate::split::Divide;
use crate::storage::Storage;
use crate::{DataKind, DataLayout, DataWarning};

/// The images of a data set.
#[derive(Clone)]
pub struct Unlabelled {
    /// The kind of data set.
    pub kind: DataKind,
    /// How it lies in files.
    pub layout: DataLayout,
    /// All of its images, or those of each part.
    pub parts: Vec<Arc<dyn Dataset>>,
    /// What the user should know about the data.
    pub warnings: Vec<DataWarning>,
}

/// Whether `path` names a data set rather than images: a packed file, a manifest, an archive, a Parquet file, a pattern of these,
/// a folder that holds archives or Parquet files, or an address.
pub fn holds_unlabelled(path: &Path) -> bool {
    let is = |extensions: &[&str]| has_extension(&path.to_string_lossy(), extensions);
    match path.metadata() {
        Err(_) => is_pattern(path) || is_remote(path),
        Ok(metadata) if metadata.is_dir() => [shards::EXTENSION, parquet::EXTENSION]
            .iter()
            .any(|of| in_folder(path, of).is_ok_and(|found| !found.is_empty())),
        Ok(_) => is(&manifest::EXTENSIONS) || is(&[shards::EXTENSION, parquet::EXTENSION]) || is_packed(path),
    }
}

/// Opens all images of a data set for which [`holds_unlabelled`] holds.
pub fn open_unlabelled(path: &Path, options: &OpenOptions) -> Result<Unlabelled, DataError> {
    let is = |path: &Path, extension: &str| has_extension(&path.to_string_lossy(), &[extension]);
    let storage = &Storage::of(path, &options.remote)?;
    let of = |layout: DataLayout, images: Arc<dyn Dataset>| {
        Ok(Unlabelled { kind: DataKind::Folder, layout, parts: vec![images], warnings: storage.warnings() })
    };
    let files = match path.metadata() {
        _ if is_packed(path) => {
            let data = packed_file::open(storage.open(path)?, options.reading)?;
            let parts = [data.train, data.validation].into_iter().chain(data.test).collect();
            return Ok(Unlabelled { kind: data.kind, layout: data.layout, parts, warnings: storage.warnings() });
        }
        _ if storage.is_remote() => objects::files(storage, path)?,
        Err(_) if is_pattern(path) => expand(storage, path)?,
        Err(source) => return Err(DataError::read(path, source)),
        Ok(metadata) if metadata.is_dir() => match in_folder(path, shards::EXTENSION)? {
            archives if archives.is_empty() => in_folder(path, parquet::EXTENSION)?,
            archives => archives,
        },
        Ok(_) if has_extension(&path.to_string_lossy(), &manifest::EXTENSIONS) => {
            return of(DataLayout::Manifest, Arc::new(manifest::list(path, options)?.read_with(options.reading)));
        }
        Ok(_) => vec![path.to_owned()],
    };
    match files.iter().all(|file| is(file, parquet::EXTENSION)) {
        true => of(DataLayout::Parquet, Arc::new(parquet::list(storage, files, options)?.read_with(options.reading))),
        false => of(DataLayout::Archives, Arc::new(shards::list(storage, files)?.read_with(options.reading))),
    }
}
