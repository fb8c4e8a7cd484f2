//! ImageNet as Kaggle packs it, read in place: the validation images are in one folder, with their classes in
//! `LOC_val_solution.csv`.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use enmasse_data::DataError;
use enmasse_image::ImageFormat;

use super::imagenet::{NAMES, describe, find_table, is_number, read_names, read_table};
use super::{Format, class_folders};
use crate::file_list::FileList;
use crate::folder::require_images;
use crate::scan::{files, folders};
use crate::split::Scanned;
use crate::{DataLayout, Folder, LeftOut};

pub(super) const FORMAT: Format = Format {
    extensions: &[],
    recognise: |source| {
        Ok(if source.is_folder() { data_folder(source.root).into_iter().collect() } else { Vec::new() })
    },
    open: |_, folder| Ok(Box::new(scan(&folder[0])?)),
    images: None,
};

const LABELS: &str = "LOC_val_solution.csv";

/// The folder of Kaggle's layout that holds `train` and `val`, if `root` is a place where its archive was extracted, or a
/// folder of it.
pub(super) fn data_folder(root: &Path) -> Option<PathBuf> {
    let is_it = |folder: &PathBuf| folder.ends_with("CLS-LOC") && folder.join("train").is_dir();
    ["ILSVRC/Data/CLS-LOC", "Data/CLS-LOC"].iter().map(|below| root.join(below)).chain([root.to_owned()]).find(is_it)
}

/// Lists ImageNet in the folder that [`data_folder`] found.
fn scan(folder: &Path) -> Result<Scanned<Folder>, DataError> {
    // Many sort the validation images into folders of classes once they have extracted them.
    if !folders(&folder.join("val"), &mut LeftOut::default())?.is_empty() {
        return class_folders::scan(folder);
    }
    let train = Folder::scan_below(folder, "train")?;
    require_images(folder, &[("train", &train)])?;
    if let Some(names) = find_table(folder, NAMES) {
        check_classes(&train, &read_names(&names)?, &names, folder)?;
    }
    let Some(labels) = find_table(folder, LABELS) else {
        let problem = format!("{LABELS} is not in a folder above it; it has the labels of the images in val/");
        return Err(DataError::layout(folder, problem));
    };
    let validation = validation_part(folder, train.classes(), &labels)?;
    let mut scanned =
        Scanned { held_out: Some(validation), ..Scanned::whole(DataLayout::KaggleImageNet, folder, train) };
    describe(&mut scanned, folder)?;
    Ok(scanned)
}

/// The tables that lie in folders above the folder `root` and belong to it.
pub fn tables_above(root: &Path) -> Vec<PathBuf> {
    let folder = data_folder(root).unwrap_or_else(|| root.to_owned());
    let Some(root) = fs::canonicalize(root).ok().filter(|root| root.is_dir()) else { return Vec::new() };
    let tables = [NAMES, LABELS].into_iter().filter_map(|name| find_table(&folder, name));
    tables.filter(|table| !table.starts_with(&root)).collect()
}

/// Fails if the training part lacks a class of Kaggle's table.
fn check_classes(train: &Folder, names: &[(String, String)], table: &Path, folder: &Path) -> Result<(), DataError> {
    let lacking: Vec<&str> = names
        .iter()
        .map(|(number, _)| number.as_str())
        .filter(|number| train.classes().binary_search_by(|class| class.as_str().cmp(number)).is_err())
        .collect();
    match lacking.first() {
        None => Ok(()),
        Some(first) => Err(DataError::layout(
            folder.join("train"),
            format!(
                "this copy is not complete: {} of the {} classes in {} are missing, the first one {first}",
                lacking.len(),
                names.len(),
                table.display()
            ),
        )),
    }
}

/// The images in `val`, labelled by Kaggle's table.
fn validation_part(folder: &Path, classes: &[String], table: &Path) -> Result<Folder, DataError> {
    let text = read_table(table)?;
    let mut labels = HashMap::new();
    for (line, text) in (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
        // A class, and the corners of its box, for each object in the image.
        let Some((image, class)) = text.split_once(',').map(|(image, boxes)| (image, first_word(boxes))) else {
            return Err(DataError::layout(table, format!("line {line} has no comma")));
        };
        if line == 1 && !is_number(class) {
            continue;
        }
        match classes.binary_search_by(|known| known.as_str().cmp(class)) {
            Ok(label) => labels.insert(image, label as u32),
            Err(_) => {
                let problem =
                    format!("line {line} has the class {class:?}, which is not in {}", folder.join("train").display());
                return Err(DataError::layout(table, problem));
            }
        };
    }
    let val = folder.join("val");
    let mut left_out = LeftOut::default();
    let mut list = FileList::default();
    for file in files(&val, &ImageFormat::EXTENSIONS, &mut left_out)? {
        let stem = file.rsplit_once('.').map_or(file.as_str(), |(stem, _)| stem);
        let Some(&label) = labels.get(stem) else {
            let problem = format!("{} has no label for it", table.display());
            return Err(DataError::layout(val.join(file), problem));
        };
        list.push(&format!("val/{file}"), label);
    }
    Ok(Folder::of_files(folder, classes.to_vec(), list).with_left_out(left_out))
}

fn first_word(text: &str) -> &str {
    text.split_whitespace().next().unwrap_or_default()
}
