//! Manifests: tables of images and their classes, as CSV, TSV or lines of JSON.
//!
//! Columns are found by the names that people give them, or by those that the user names. Only the list is read here; the
//! images are files, which are read when their turn comes.

use std::path::{Path, PathBuf};

use enmasse_data::{DataError, Dataset};

use super::Format;
use super::classes::{Distinct, LABELS, check_test_classes, sort_classes};
use super::parts::PartName;
use super::source::{Named, Source};
use super::table::{Rows, Value};
use crate::file_list::FileList;
use crate::scan::has_extension;
use crate::split::Scanned;
use crate::{DataLayout, DataWarning, Folder, OpenOptions, Unlabelled};

pub(super) const FORMAT: Format = Format {
    extensions: &EXTENSIONS,
    recognise: |source| {
        let is_file = matches!(source.named, Named::File) && !source.storage.is_remote();
        Ok(source.root_if(is_file && has_extension(&source.root.to_string_lossy(), &EXTENSIONS)))
    },
    open: |source, _| Ok(Box::new(scan(source.root, source.options)?)),
    images: Some(|source, _| images(source)),
};

/// Extensions of manifests.
pub(super) const EXTENSIONS: [&str; 4] = ["csv", "tsv", "jsonl", "ndjson"];

/// Names of the column that has the paths of images.
pub(super) const PATHS: [&str; 10] =
    ["path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img", "img_path"];
/// Names of the column that says which part a row belongs to.
const SPLITS: [&str; 4] = ["split", "part", "subset", "set"];

/// The folder from which relative paths of a manifest begin.
pub(super) fn folder_of(manifest: &Path, options: &OpenOptions) -> PathBuf {
    match &options.manifest_root {
        Some(root) => root.clone(),
        None => match manifest.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        },
    }
}

/// Reads a manifest: everything, or its parts if it has a column for these.
fn scan(manifest: &Path, options: &OpenOptions) -> Result<Scanned<Folder>, DataError> {
    let rows = Rows::open(manifest)?;
    let columns = Columns::find(rows.columns(), options).map_err(|problem| DataError::layout(manifest, problem))?;
    let listed = List::read(rows, &columns, manifest)?;
    let root = folder_of(manifest, options);
    listed.check_first_file(manifest, &root)?;
    listed.check_single_labels(manifest)?;
    let (classes, labels) = sort_classes(&listed.classes.texts)
        .map_err(|(class, problem)| listed.error(manifest, listed.line_of_class(class), &problem))?;
    let part = |wanted: &dyn Fn(Option<PartName>) -> bool| {
        let mut files = FileList::default();
        for index in (0..listed.files.len()).filter(|&index| wanted(listed.part(index))) {
            files.push(listed.files.path(index), labels[listed.files.label(index) as usize]);
        }
        Folder::of_files(&root, classes.clone(), files)
    };
    let has = |part| listed.parts.contains(&part);
    let Some(held_out) = [PartName::Validation, PartName::Test].into_iter().find(|&part| has(part)) else {
        return Ok(Scanned::whole(DataLayout::Manifest, manifest, part(&|_| true)));
    };
    if !has(PartName::Train) {
        let problem = format!("its column {:?} has no rows for training", columns.split.unwrap_or_default());
        return Err(DataError::layout(manifest, problem));
    }
    let rows_for = |wanted: PartName| part(&|part| part == Some(wanted));
    let has_test = held_out != PartName::Test && has(PartName::Test);
    let warning = (held_out == PartName::Test).then(|| DataWarning::test_validates(manifest, "its test part"));
    let (train, test) = (rows_for(PartName::Train), has_test.then(|| rows_for(PartName::Test)));
    check_test_classes(&train, test.as_ref().map(|test| test as &dyn Dataset), &classes)?;
    Ok(Scanned {
        held_out: Some(rows_for(held_out)),
        test,
        warnings: warning.into_iter().collect(),
        ..Scanned::whole(DataLayout::Manifest, manifest, train)
    })
}

/// The images of a manifest, whatever their labels.
fn images(source: &Source) -> Result<Unlabelled, DataError> {
    let manifest = source.root;
    let rows = Rows::open(manifest)?;
    let columns = Columns::of_paths(rows.columns(), source.options);
    let listed = List::read(rows, &columns.map_err(|problem| DataError::layout(manifest, problem))?, manifest)?;
    let root = folder_of(manifest, source.options);
    listed.check_first_file(manifest, &root)?;
    let images = Folder::of_files(&root, listed.classes.texts, listed.files);
    Ok(Unlabelled::of(DataLayout::Manifest, images.read_with(source.options.reading)))
}

/// The names of the columns that count.
struct Columns {
    path: String,
    /// `None` if labels do not count.
    label: Option<String>,
    split: Option<String>,
}

impl Columns {
    fn find(columns: &[String], options: &OpenOptions) -> Result<Self, String> {
        let paths = Self::of_paths(columns, options)?;
        let label = find(columns, &LABELS, options.label_column.as_deref(), "label", "`label_column`")?;
        let split = columns.iter().find(|column| SPLITS.contains(&plain(column).as_str()));
        Ok(Columns { label: Some(label), split: split.cloned(), ..paths })
    }

    /// The column of paths alone.
    fn of_paths(columns: &[String], options: &OpenOptions) -> Result<Self, String> {
        let path = find(columns, &PATHS, options.path_column.as_deref(), "path", "`path_column`")?;
        Ok(Columns { path, label: None, split: None })
    }
}

/// The column with one of the known names, or the one that the user chose. `what` it has, and the `flag` that chooses.
fn find(columns: &[String], known: &[&str], chosen: Option<&str>, what: &str, flag: &str) -> Result<String, String> {
    let all = || columns.join(", ");
    if let Some(chosen) = chosen {
        let found = columns
            .iter()
            .find(|column| *column == chosen)
            .or_else(|| columns.iter().find(|column| plain(column) == plain(chosen)));
        return found.cloned().ok_or_else(|| format!("it has no column {chosen:?}; its columns are {}", all()));
    }
    let found: Vec<&String> = columns.iter().filter(|column| known.contains(&plain(column).as_str())).collect();
    match found.as_slice() {
        [one] => Ok((*one).clone()),
        [] => Err(format!(
            "none of its columns ({}) is called {} or alike; name the columns in the first line, or choose one with \
             {flag}. An image has one class: several labels, and numbers as targets, are not supported",
            all(),
            known[..4].join(", "),
        )),
        several => {
            let names: Vec<&str> = several.iter().map(|name| name.as_str()).collect();
            let names = names.join(", ");
            Err(format!("it has several columns for the {what} of an image ({names}); choose one with {flag}"))
        }
    }
}

/// A column's name as it is compared.
pub(super) fn plain(name: &str) -> String {
    name.trim().to_ascii_lowercase().replace([' ', '-'], "_")
}

/// The rows, with classes in the order of their first row.
#[derive(Default)]
struct List {
    files: FileList,
    /// Names of the classes.
    classes: Distinct,
    /// The part of each row; empty if there is no column for it.
    parts: Vec<PartName>,
    /// The line of each row.
    lines: Vec<u32>,
}

impl List {
    fn read(rows: Rows, columns: &Columns, manifest: &Path) -> Result<Self, DataError> {
        let mut list = List::default();
        let wanted = [Some(columns.path.as_str()), columns.label.as_deref(), columns.split.as_deref()];
        rows.each(wanted, |line, [path, label, split]| {
            let path = path.text().filter(|path| !path.is_empty()).ok_or_else(|| "it names no image".to_owned())?;
            let class = match label {
                _ if columns.label.is_none() => "",
                Value::Text(class) if !class.trim().is_empty() => class.trim(),
                Value::Text(_) | Value::Nothing => return Err(format!("{path} has no label")),
                Value::Several => {
                    return Err(format!("{path} has a list of labels: several labels of an image are not supported"));
                }
            };
            let label = list.classes.number(class);
            if let Some(column) = &columns.split {
                let name = split.text().unwrap_or_default();
                let part = PartName::of(name.trim())
                    .ok_or_else(|| format!("its {column} is {name:?}, which is none of train, val and test"))?;
                list.parts.push(part);
            }
            list.files.push(path, label);
            list.lines.push(line);
            Ok(())
        })?;
        match list.files.len() {
            0 => Err(DataError::layout(manifest, "it has no rows below the names of its columns")),
            _ => Ok(list),
        }
    }

    fn part(&self, index: usize) -> Option<PartName> {
        self.parts.get(index).copied()
    }

    fn error(&self, manifest: &Path, index: usize, problem: &str) -> DataError {
        DataError::layout(manifest, format!("line {}: {problem}", self.lines[index]))
    }

    /// A wrong root would make every image unreadable.
    fn check_first_file(&self, manifest: &Path, root: &Path) -> Result<(), DataError> {
        let path = root.join(self.files.path(0));
        match path.exists() {
            true => Ok(()),
            false => {
                let problem = format!(
                    "there is no {}; relative paths begin from the manifest's folder, or from `manifest_root`",
                    path.display()
                );
                Err(self.error(manifest, 0, &problem))
            }
        }
    }

    /// Fails if an image is listed with two classes, as tables of several labels have it.
    fn check_single_labels(&self, manifest: &Path) -> Result<(), DataError> {
        let mut order: Vec<usize> = (0..self.files.len()).collect();
        order.sort_unstable_by_key(|&index| (self.files.path(index), index));
        for pair in order.windows(2) {
            let &[one, two] = pair else { continue };
            if self.files.path(one) == self.files.path(two) && self.files.label(one) != self.files.label(two) {
                let class = |index: usize| &self.classes.texts[self.files.label(index) as usize];
                let problem = format!(
                    "{} is of the class {:?}, and of {:?} in line {}: several labels of an image are not supported",
                    self.files.path(two),
                    class(two),
                    class(one),
                    self.lines[one]
                );
                return Err(self.error(manifest, two, &problem));
            }
        }
        Ok(())
    }

    /// The first row of a class.
    fn line_of_class(&self, class: usize) -> usize {
        (0..self.files.len()).find(|&index| self.files.label(index) as usize == class).unwrap_or_default()
    }
}
