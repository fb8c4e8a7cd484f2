//! WebDataset: the samples of tar archives, in parts if the archives are.

use std::path::PathBuf;
use std::sync::Arc;

use enmasse_data::DataError;

use super::classes::{Distinct, LABELS, check_test_classes, is_fraction, sorted};
use super::parts::PartName;
use super::pieces::{Pieces, read_all};
use super::source::{Named, Source};
use super::{Format, PARQUET};
use crate::file_list::FileList;
use crate::shards::{ImageLocation, Indexed, Labels, Sample, Shards, index, no_label};
use crate::split::{Divide, Scanned};
use crate::storage::OpenFiles;
use crate::{DataLayout, DataWarning, Unlabelled};

pub(super) const FORMAT: Format = Format {
    extensions: &[EXTENSION],
    recognise: |source| match &source.named {
        // Files of any names are taken for archives.
        Named::Pattern(files) if source.files(PARQUET)?.is_empty() => Ok(files.clone()),
        _ => source.files(EXTENSION),
    },
    open: |source, files| Ok(Box::new(scan(source, files)?)),
    images: Some(images),
};

/// The extension of their names.
const EXTENSION: &str = "tar";

/// The images in archives, whatever their labels.
fn images(source: &Source, archives: Vec<PathBuf>) -> Result<Unlabelled, DataError> {
    let storage = &source.storage;
    let files: Vec<(PathBuf, PartName)> = archives.iter().map(|path| (path.clone(), PartName::Train)).collect();
    let (mut names, mut places) = (FileList::default(), Vec::new());
    for (number, indexed) in (0..).zip(read_all(storage, &files, |path, _| index(storage, path, Labels::Ignored))?) {
        for Sample { name, offset, length, .. } in indexed.samples {
            names.push(&name, 0);
            places.push(ImageLocation { offset, archive: number, length });
        }
    }
    let archives = Arc::new(OpenFiles::new(storage.clone(), archives));
    let images = Shards::new(archives, vec![String::new()], names, places);
    Ok(Unlabelled::of(DataLayout::Archives, images.read_with(source.options.reading)))
}

/// Lists the images in archives.
fn scan(source: &Source, archives: Vec<PathBuf>) -> Result<Scanned<Shards>, DataError> {
    let storage = &source.storage;
    let root = source.folder();
    let mut pieces = Pieces::new(archives.clone(), root, &[])?;
    let mut fields: Vec<&str> = source.options.label_column.iter().map(String::as_str).collect();
    if fields.is_empty() {
        fields = LABELS.to_vec();
    }
    let mut warnings = Vec::new();
    let (mut distinct, mut first) = (Distinct::default(), Vec::new());
    let mut lists: [(FileList, Vec<ImageLocation>); 3] = Default::default();
    let has_test = pieces.has_test();
    let is_test = |part: PartName| has_test && part == PartName::Test;
    let mut indexed = read_all(storage, &pieces.files, |path, part| {
        index(storage, path, if is_test(part) { Labels::Optional(&fields) } else { Labels::Needed(&fields) })
    })?;
    // Tests are often published without labels.
    let tests = || {
        let tests = indexed.iter().zip(&pieces.files).filter(|(_, (_, part))| is_test(*part));
        tests.flat_map(|(indexed, (path, _))| indexed.samples.iter().map(move |sample| (path, sample)))
    };
    let is_unlabelled = |(_, sample): &(&PathBuf, &Sample)| sample.label.is_empty();
    if has_test && tests().all(|sample| is_unlabelled(&sample)) {
        warnings.push(DataWarning::unlabelled_test(root, "its samples have no labels"));
        let labelled = indexed.into_iter().zip(&pieces.files).filter(|(_, (_, part))| !is_test(*part));
        indexed = labelled.map(|(indexed, _)| indexed).collect();
        pieces = Pieces::new(archives, root, &[PartName::Test])?;
    } else if let Some((path, sample)) = tests().find(is_unlabelled) {
        return Err(DataError::layout(path, no_label(&sample.name)));
    }
    warnings.extend(pieces.warning(root));
    for (number, Indexed { samples, is_complete }) in indexed.into_iter().enumerate() {
        if !is_complete {
            let path = pieces.files[number].0.display();
            let problem = format!("{path}: it lacks the mark of an archive's end, and may have been cut short");
            warnings.push(DataWarning::incomplete(problem));
        }
        let (names, places) = &mut lists[pieces.place_of(pieces.files[number].1)];
        for sample in samples {
            let label = distinct.number(&sample.label);
            if label as usize == first.len() {
                first.push((number, sample.name.clone()));
            }
            names.push(&sample.name, label);
            places.push(ImageLocation { offset: sample.offset, archive: number as u32, length: sample.length });
        }
    }
    if lists[0].1.is_empty() {
        return Err(DataError::layout(root, "there are no samples in its archives"));
    }
    if let Some(class) = distinct.texts.iter().position(|class| is_fraction(class)) {
        let (number, name) = &first[class];
        let problem =
            format!("its label is {}: archives have classes, and tables numbers to predict", distinct.texts[class]);
        return Err(DataError::layout(pieces.files[*number].0.join(name), problem));
    }
    let (classes, labels) = sorted(&distinct.texts);
    let has_validation = pieces.held_out.is_some();
    let has_test = pieces.has_test();
    let archives = pieces.files.into_iter().map(|(path, _)| path).collect();
    let archives = Arc::new(OpenFiles::new(storage.clone(), archives));
    let [train, validation, test] =
        lists.map(|(names, places)| Shards::new(archives.clone(), classes.clone(), names.relabelled(&labels), places));
    let held_out = has_validation.then_some(validation);
    let test = has_test.then_some(test);
    check_test_classes(&train, test.as_ref())?;
    Ok(Scanned { held_out, test, warnings, ..Scanned::whole(DataLayout::Archives, source.root, train) })
}
