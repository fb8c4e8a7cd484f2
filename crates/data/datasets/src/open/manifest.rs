//! Manifests: tables of images and their classes, labels or numbers, as CSV, TSV or lines of JSON.
//!
//! Columns are found by the names that people give them, or by those that the user names. Only the list is read here; the
//! images are files, which are read when their turn comes.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use enmasse_data::DataError;

use super::Format;
use super::cells::{Cells, Form, Meaning, NUMBERS, TAGS, joined_values, truth};
use super::classes::{Distinct, LABELS, check_test_classes};
use super::parts::PartName;
use super::source::{Named, Source};
use super::table::{Rows, Value};
use crate::file_list::FileList;
use crate::scan::has_extension;
use crate::split::Scanned;
use crate::{DataLayout, DataWarning, Folder, OpenOptions, TaskKind, Unlabelled};

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
    let cells = Cells { columns: &columns.labels, form: listed.form, texts: &listed.cells.texts, items: None };
    let meaning = cells.meaning(options.task).map_err(|(cell, problem)| {
        let row = listed.row_of_cell(cell);
        listed.error(manifest, row, &format!("{}: {problem}", listed.files.path(row)))
    })?;
    let repeated = Repeated::find(&listed, &meaning, manifest)?;
    let part = |wanted: &dyn Fn(Option<PartName>) -> bool| listed.part_of(&root, &meaning, &repeated, wanted);
    let mut warnings = Vec::new();
    if listed.form == Form::Columns && options.task.is_none() && matches!(meaning, Meaning::Classes { .. }) {
        warnings.push(DataWarning::one_hot(manifest, columns.labels.len()));
    }
    let has = |part| listed.parts.contains(&part);
    let Some(held_out) = [PartName::Validation, PartName::Test].into_iter().find(|&part| has(part)) else {
        return Ok(Scanned { warnings, ..Scanned::whole(DataLayout::Manifest, manifest, part(&|_| true)) });
    };
    if !has(PartName::Train) {
        let problem = format!("its column {:?} has no rows for training", columns.split.unwrap_or_default());
        return Err(DataError::layout(manifest, problem));
    }
    let rows_for = |wanted: PartName| part(&|part| part == Some(wanted));
    let has_test = held_out != PartName::Test && has(PartName::Test);
    warnings.extend((held_out == PartName::Test).then(|| DataWarning::test_validates(manifest, "its test part")));
    let train = rows_for(PartName::Train);
    let test = has_test.then(|| rows_for(PartName::Test));
    check_test_classes(&train, test.as_ref())?;
    let held_out = Some(rows_for(held_out));
    Ok(Scanned { held_out, test, warnings, ..Scanned::whole(DataLayout::Manifest, manifest, train) })
}

/// The images of a manifest, whatever their labels.
fn images(source: &Source) -> Result<Unlabelled, DataError> {
    let manifest = source.root;
    let rows = Rows::open(manifest)?;
    let columns = Columns::of_paths(rows.columns(), source.options);
    let listed = List::read(rows, &columns.map_err(|problem| DataError::layout(manifest, problem))?, manifest)?;
    let root = folder_of(manifest, source.options);
    listed.check_first_file(manifest, &root)?;
    let images = Folder::of_files(&root, listed.cells.texts, listed.files);
    Ok(Unlabelled::of(DataLayout::Manifest, images.read_with(source.options.reading)))
}

/// The names of the columns that count.
struct Columns {
    path: String,
    /// Those of classes, labels or numbers; none if these do not count.
    labels: Vec<String>,
    /// Whether the columns of labels are all others, since none has a known name.
    are_others: bool,
    split: Option<String>,
}

impl Columns {
    fn find(columns: &[String], options: &OpenOptions) -> Result<Self, String> {
        let paths = Self::of_paths(columns, options)?;
        let split = columns.iter().find(|column| SPLITS.contains(&plain(column).as_str())).cloned();
        let (labels, are_others) = match &options.label_column {
            Some(chosen) => (chosen_labels(columns, chosen)?, false),
            None => labels(columns, options.task, &|column| *column == paths.path || Some(column) == split.as_ref())?,
        };
        Ok(Columns { labels, are_others, split, ..paths })
    }

    /// The column of paths alone.
    fn of_paths(columns: &[String], options: &OpenOptions) -> Result<Self, String> {
        let path = find(columns, &PATHS, options.path_column.as_deref(), "path", "`path_column`")?;
        Ok(Columns { path, labels: Vec::new(), are_others: false, split: None })
    }
}

/// The columns that the user chose: one by its name, or several whose names are separated by commas.
fn chosen_labels(columns: &[String], chosen: &str) -> Result<Vec<String>, String> {
    let one = |name: &str| find(columns, &[], Some(name), "label", "`label_column`");
    match one(chosen) {
        Err(_) if chosen.contains(',') => {
            let mut several = Vec::new();
            for name in chosen.split(',').map(str::trim).filter(|name| !name.is_empty()) {
                let column = one(name)?;
                if !several.contains(&column) {
                    several.push(column);
                }
            }
            Ok(several)
        }
        found => found.map(|column| vec![column]),
    }
}

/// The columns of labels by their names; otherwise all for which `is_other` is not true, and which are no names of rows. Tells
/// whether it is these.
fn labels(
    columns: &[String],
    task: Option<TaskKind>,
    is_other: &dyn Fn(&String) -> bool,
) -> Result<(Vec<String>, bool), String> {
    let known: Vec<&str> = match task {
        None | Some(TaskKind::Classification) => LABELS.to_vec(),
        Some(TaskKind::MultiLabel) => [LABELS.as_slice(), &TAGS].concat(),
        Some(TaskKind::Regression) => [LABELS.as_slice(), &NUMBERS].concat(),
    };
    // A column of labels with a usual name counts before others.
    for known in [known, [TAGS.as_slice(), &NUMBERS].concat()].into_iter().take(if task.is_none() { 2 } else { 1 }) {
        if columns.iter().any(|column| known.contains(&plain(column).as_str())) {
            return Ok((vec![find(columns, &known, None, "label", "`label_column`")?], false));
        }
    }
    let is_named = |column: &&String| {
        let name = plain(column);
        !["", "id", "index", "idx"].contains(&name.as_str()) && !name.starts_with("unnamed") && !name.ends_with("_id")
    };
    let others: Vec<String> = columns.iter().filter(|column| !is_other(column)).filter(is_named).cloned().collect();
    match others.len() < 2 || task == Some(TaskKind::Regression) {
        true => Err(not_found(columns, &LABELS, "`label_column`")),
        false => Ok((others, true)),
    }
}

/// The problem of a table without a column of these names.
fn not_found(columns: &[String], known: &[&str], flag: &str) -> String {
    format!(
        "none of its columns ({}) is called {} or alike; name the columns in the first line, or choose one with {flag}",
        columns.join(", "),
        known[..4].join(", "),
    )
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
        [] => Err(not_found(columns, known, flag)),
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

/// The rows, with cells in the order of their first row.
struct List {
    /// Each with the number of its cell.
    files: FileList,
    /// What rows have in the columns of labels.
    cells: Distinct,
    form: Form,
    /// The part of each row; empty if there is no column for it.
    parts: Vec<PartName>,
    /// The line of each row.
    lines: Vec<u32>,
}

impl List {
    fn read(rows: Rows, columns: &Columns, manifest: &Path) -> Result<Self, DataError> {
        let form = if columns.labels.len() > 1 { Form::Columns } else { Form::Text };
        let (files, cells) = (FileList::default(), Distinct::default());
        let mut list = List { files, cells, form, parts: Vec::new(), lines: Vec::new() };
        let mut wanted = vec![columns.path.as_str()];
        wanted.extend(columns.split.as_deref());
        let others = wanted.len();
        wanted.extend(columns.labels.iter().map(String::as_str));
        let names = rows.columns().to_vec();
        rows.each(&wanted, |line, values| {
            let path =
                values[0].text().filter(|path| !path.is_empty()).ok_or_else(|| "it names no image".to_owned())?;
            let number = match &values[others..] {
                [] => list.cells.number(""),
                [Value::Text(text)] => list.cells.number(text.trim()),
                [Value::List(items)] => {
                    list.form = Form::Lists;
                    list.cells.number(items)
                }
                [Value::Nothing] => return Err(format!("{path} has no label")),
                [Value::Nested] => return Err(format!("{path} has a label that is no text, number or list of these")),
                several => list.cells.number(&columns.cell(several, path, &names)?),
            };
            if let Some(column) = &columns.split {
                let name = values[1].text().unwrap_or_default();
                let part = PartName::of(name.trim())
                    .ok_or_else(|| format!("its {column} is {name:?}, which is none of train, val and test"))?;
                list.parts.push(part);
            }
            list.files.push(path, number);
            list.lines.push(line);
            Ok(())
        })?;
        match list.files.len() {
            0 => Err(DataError::layout(manifest, "it has no rows below the names of its columns")),
            _ => Ok(list),
        }
    }

    /// The images of some parts, with what is known of them.
    fn part_of(
        &self,
        root: &Path,
        meaning: &Meaning,
        repeated: &Repeated,
        wanted: &dyn Fn(Option<PartName>) -> bool,
    ) -> Folder {
        let mut files = FileList::default();
        let rows = (0..self.files.len()).filter(|row| wanted(self.part(*row)) && !repeated.left_out.contains(row));
        let mut targets = meaning.no_targets();
        for row in rows {
            let path = self.files.path(row);
            let cell = self.files.label(row) as usize;
            files.push(path, meaning.class(cell));
            let own = repeated.labels.get(&row).map(Vec::as_slice);
            targets.iter_mut().for_each(|targets| meaning.add(cell, own, targets));
        }
        let folder = Folder::of_files(root, meaning.names().to_vec(), files);
        match targets {
            None => folder,
            Some(targets) => folder.with_targets(targets),
        }
    }

    fn part(&self, row: usize) -> Option<PartName> {
        self.parts.get(row).copied()
    }

    fn error(&self, manifest: &Path, row: usize, problem: &str) -> DataError {
        DataError::layout(manifest, format!("line {}: {problem}", self.lines[row]))
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

    /// The first row with a cell.
    fn row_of_cell(&self, cell: usize) -> usize {
        (0..self.files.len()).find(|&row| self.files.label(row) as usize == cell).unwrap_or_default()
    }
}

impl Columns {
    /// The cell of several columns. Where nobody has chosen these, all must be labels.
    fn cell(&self, values: &[Value], path: &str, all: &[String]) -> Result<String, String> {
        let mut texts = Vec::with_capacity(values.len());
        for (column, value) in self.labels.iter().zip(values) {
            let text = value.text().unwrap_or_default().trim();
            if self.are_others && truth(text).is_none() {
                let problem = not_found(all, &LABELS, "`label_column`");
                return Err(format!("{path} has {text:?} in the column {column}, neither 0 nor 1, and {problem}"));
            }
            if text.is_empty() {
                return Err(format!("{path} has nothing in the column {column}"));
            }
            texts.push(text);
        }
        Ok(joined_values(&texts))
    }
}

/// The rows of images that have one before.
#[derive(Default)]
struct Repeated {
    /// Those that are left out, since an earlier row of the image has their labels, too.
    left_out: HashSet<usize>,
    /// The labels of these rows together, by the first row.
    labels: HashMap<usize, Vec<u32>>,
}

impl Repeated {
    /// Of labels the rows of an image in a part are one. Fails if an image has two classes, or other numbers.
    fn find(listed: &List, meaning: &Meaning, manifest: &Path) -> Result<Self, DataError> {
        let files = &listed.files;
        let mut order: Vec<usize> = (0..files.len()).collect();
        // Rows of classes and numbers are compared over parts.
        let part = |row: usize| listed.part(row).filter(|_| matches!(meaning, Meaning::Labels { .. }));
        order.sort_unstable_by_key(|&row| (files.path(row), part(row), row));
        let mut repeated = Repeated::default();
        for rows in order.chunk_by(|&one, &two| files.path(one) == files.path(two) && part(one) == part(two)) {
            let [first, others @ ..] = rows else { continue };
            let cell = |row: usize| files.label(row) as usize;
            match meaning {
                _ if others.is_empty() => {}
                Meaning::Labels { labels, .. } => {
                    let all: BTreeSet<u32> = rows.iter().flat_map(|&row| &labels[cell(row)]).copied().collect();
                    repeated.labels.insert(*first, all.into_iter().collect());
                    repeated.left_out.extend(others);
                }
                Meaning::Classes { names, labels } => {
                    let Some(pair) = rows.windows(2).find(|pair| labels[cell(pair[0])] != labels[cell(pair[1])]) else {
                        continue;
                    };
                    let class = |row: usize| &names[labels[cell(row)] as usize];
                    let problem = format!(
                        "{} is of the class {:?}, and of {:?} in line {}; `task = multi-label` takes both",
                        files.path(pair[1]),
                        class(pair[1]),
                        class(pair[0]),
                        listed.lines[pair[0]]
                    );
                    return Err(listed.error(manifest, pair[1], &problem));
                }
                Meaning::Numbers { numbers, .. } => {
                    let other = others.iter().find(|&&row| numbers[cell(row)] != numbers[cell(*first)]);
                    if let Some(&row) = other {
                        let path = files.path(row);
                        let line = listed.lines[*first];
                        let problem = format!("{path} has other numbers in line {line}; list each image once");
                        return Err(listed.error(manifest, row, &problem));
                    }
                }
            }
        }
        Ok(repeated)
    }
}
