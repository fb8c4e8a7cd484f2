//! ImageNet (ILSVRC 2012): Kaggle's layout read in place, names of its classes, and whether a copy is complete.
//!
//! Its classes are folders named by WordNet's numbers, such as `n01440764`. Kaggle's archive has the validation images in
//! one folder, with their classes in `LOC_val_solution.csv`; `LOC_synset_mapping.txt` names the classes.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use enmasse_data::{DataError, Dataset};
use enmasse_image::ImageFormat;
use enmasse_system::files::read_regular;
use enmasse_wording::grouped;

use crate::file_list::FileList;
use crate::folder::require_images;
use crate::scan::{files, folders};
use crate::split::Scanned;
use crate::{DataLayout, DataWarning, Folder, LeftOut};

const CLASSES: usize = 1000;
/// Images of the training part and of the validation part.
const IMAGES: [usize; 2] = [1_281_167, 50_000];

const NAMES: &str = "LOC_synset_mapping.txt";
const LABELS: &str = "LOC_val_solution.csv";
/// Limit of these tables' bytes; Kaggle's have 31 KB and 2.4 MB.
const MAX_TABLE_BYTES: u64 = 64 << 20;

/// The folder of Kaggle's layout that holds `train` and `val`, if `root` is a place where its archive was extracted, or a
/// folder of it.
pub(crate) fn kaggle_folder(root: &Path) -> Option<PathBuf> {
    let is_it = |folder: &PathBuf| folder.ends_with("CLS-LOC") && folder.join("train").is_dir();
    ["ILSVRC/Data/CLS-LOC", "Data/CLS-LOC"].iter().map(|below| root.join(below)).chain([root.to_owned()]).find(is_it)
}

/// Lists ImageNet in the folder that [`kaggle_folder`] found.
pub(crate) fn scan_kaggle(folder: &Path) -> Result<Scanned<Folder>, DataError> {
    // Many sort the validation images into folders of classes once they have extracted them.
    if !folders(&folder.join("val"), &mut LeftOut::default())?.is_empty() {
        return super::class_folders::scan(folder);
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
    let mut scanned = Scanned { held_out: Some(validation), ..Scanned::whole(DataLayout::KaggleImageNet, train) };
    describe(&mut scanned, folder)?;
    Ok(scanned)
}

/// If the classes are ImageNet's: names them, where a table does, and warns of missing images.
pub(crate) fn describe(scanned: &mut Scanned<Folder>, root: &Path) -> Result<(), DataError> {
    let Scanned { train, held_out, test, warnings, .. } = scanned;
    if !train.classes().iter().all(|class| is_number(class)) {
        return Ok(());
    }
    if let (CLASSES, Some(validation)) = (train.classes().len(), held_out.as_ref()) {
        let parts = [("training", train.len(), IMAGES[0]), ("validation", validation.len(), IMAGES[1])];
        for (part, found, expected) in parts.into_iter().filter(|(_, found, expected)| found != expected) {
            warnings.push(DataWarning::incomplete(format!(
                "{}: ImageNet has {} {part} images, and this copy has {}",
                root.display(),
                grouped(expected as u64),
                grouped(found as u64)
            )));
        }
    }
    if let Some(table) = find_table(root, NAMES) {
        let names: HashMap<String, String> = read_names(&table)?.into_iter().collect();
        for part in [Some(train), held_out.as_mut(), test.as_mut()].into_iter().flatten() {
            let name = |class: &String| match names.get(class) {
                Some(name) => format!("{class} {name}"),
                None => class.clone(),
            };
            let classes = part.classes().iter().map(name).collect();
            *part = part.clone().with_classes(classes);
        }
    }
    Ok(())
}

/// The tables that lie in folders above the folder `root` and belong to it.
pub fn tables_above(root: &Path) -> Vec<PathBuf> {
    let folder = kaggle_folder(root).unwrap_or_else(|| root.to_owned());
    let Some(root) = fs::canonicalize(root).ok().filter(|root| root.is_dir()) else { return Vec::new() };
    let tables = [NAMES, LABELS].into_iter().filter_map(|name| find_table(&folder, name));
    tables.filter(|table| !table.starts_with(&root)).collect()
}

/// Whether two names are those of one class: they are the same, or begin with the same number of WordNet.
pub(crate) fn is_same_class(one: &str, other: &str) -> bool {
    let number = |name: &str| name.split(' ').next().filter(|word| is_number(word)).map(str::to_owned);
    one == other || number(one).is_some_and(|own| number(other) == Some(own))
}

/// Whether a name is one of WordNet's numbers.
fn is_number(name: &str) -> bool {
    name.len() == 9 && name.starts_with('n') && name.bytes().skip(1).all(|byte| byte.is_ascii_digit())
}

/// The file with this name in `folder` or in one of the three folders above it.
fn find_table(folder: &Path, name: &str) -> Option<PathBuf> {
    let folder = fs::canonicalize(folder).ok()?;
    folder.ancestors().take(4).map(|above| above.join(name)).find(|path| path.is_file())
}

fn read_table(path: &Path) -> Result<String, DataError> {
    let bytes = read_regular(path, MAX_TABLE_BYTES).map_err(|source| DataError::read(path, source))?;
    String::from_utf8(bytes).map_err(|_| DataError::layout(path, "it is not valid UTF-8"))
}

/// Numbers and first names of the classes: `n01440764 tench, Tinca tinca` is (`n01440764`, `tench`).
fn read_names(path: &Path) -> Result<Vec<(String, String)>, DataError> {
    let text = read_table(path)?;
    let entry = |(line, text): (usize, &str)| match text.split_once(' ') {
        Some((number, names)) if is_number(number) => {
            let first = names.split(',').next().unwrap_or(names).trim();
            Ok((number.to_owned(), first.to_owned()))
        }
        _ => Err(DataError::layout(path, format!("line {line} does not begin with a class such as n01440764"))),
    };
    (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()).map(entry).collect()
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
    let (val, mut left_out) = (folder.join("val"), LeftOut::default());
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
