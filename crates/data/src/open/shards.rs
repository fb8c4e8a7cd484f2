//! WebDataset: the samples of tar archives, in parts if the archives are.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::OpenOptions;
use super::classes::{Distinct, LABELS, sort_classes};
use super::pieces::{Pieces, read_all};
use crate::file_list::FileList;
use crate::open_files::OpenFiles;
use crate::shards::{Indexed, Place, Sample, Shards, index};
use crate::split::Scanned;
use crate::storage::Storage;
use crate::{DataError, DataLayout, DataWarning};

/// The extension of their names.
pub(super) const EXTENSION: &str = "tar";

/// The pictures in archives, whatever their labels.
pub(super) fn list(storage: &Storage, archives: Vec<PathBuf>) -> Result<Shards, DataError> {
    let files: Vec<(PathBuf, bool)> = archives.iter().map(|path| (path.clone(), false)).collect();
    let (mut names, mut places) = (FileList::default(), Vec::new());
    for (number, indexed) in (0..).zip(read_all(storage, &files, |path| index(storage, path, None))?) {
        for Sample { name, offset, length, .. } in indexed.samples {
            names.push(&name, 0);
            places.push(Place { offset, archive: number, length });
        }
    }
    let archives = Arc::new(OpenFiles::new(storage.clone(), archives));
    Ok(Shards::new(archives, vec![String::new()], names, places))
}

/// Lists the pictures in archives, which are named relative to `root` to find out their parts.
pub(crate) fn scan(
    storage: &Storage,
    archives: Vec<PathBuf>,
    root: &Path,
    options: &OpenOptions,
) -> Result<Scanned<Shards>, DataError> {
    let Pieces { files, held_out } = Pieces::new(archives, root, &[])?;
    let mut fields: Vec<&str> = options.label_column.iter().map(String::as_str).collect();
    if fields.is_empty() {
        fields = LABELS.to_vec();
    }
    let mut warnings = Vec::new();
    let (mut distinct, mut first) = (Distinct::default(), Vec::new());
    let mut lists = [(FileList::default(), Vec::new()), (FileList::default(), Vec::new())];
    let indexed = read_all(storage, &files, |path| index(storage, path, Some(&fields)))?;
    for (number, Indexed { samples, is_complete }) in indexed.into_iter().enumerate() {
        if !is_complete {
            let path = files[number].0.display();
            let problem = format!("{path}: it lacks the mark of an archive's end, and may have been cut short");
            warnings.push(DataWarning::incomplete(problem));
        }
        let (names, places) = &mut lists[usize::from(files[number].1)];
        for sample in samples {
            let label = distinct.number(&sample.label);
            if label as usize == first.len() {
                first.push((number, sample.name.clone()));
            }
            names.push(&sample.name, label);
            places.push(Place { offset: sample.offset, archive: number as u32, length: sample.length });
        }
    }
    if lists[0].1.is_empty() {
        return Err(DataError::layout(root, "there are no samples in its archives"));
    }
    let (classes, labels) = sort_classes(&distinct.texts).map_err(|(class, problem)| {
        let (number, name) = &first[class];
        DataError::layout(files[*number].0.join(name), problem)
    })?;
    let archives = files.into_iter().map(|(path, _)| path).collect();
    let archives = Arc::new(OpenFiles::new(storage.clone(), archives));
    let [train, validation] =
        lists.map(|(names, places)| Shards::new(archives.clone(), classes.clone(), names.relabelled(&labels), places));
    let held_out = held_out.map(|_| validation);
    Ok(Scanned { held_out, warnings, ..Scanned::whole(DataLayout::Archives, train) })
}
