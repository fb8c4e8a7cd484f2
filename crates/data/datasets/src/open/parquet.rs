//! Parquet files: which of their columns count, and the labels of all rows, in parts if the files are.

use std::path::{Path, PathBuf};

use enmasse_data::DataError;
use enmasse_parquet::{Column, ParquetFile, PhysicalType, RowGroup};
use serde_json::Value as Json;

use super::Format;
use super::classes::{Distinct, LABELS, check_test_classes, sort_classes};
use super::manifest::{PATHS, plain};
use super::parts::PartName;
use super::pieces::{Pieces, read_all};
use super::source::Source;
use crate::parquet::{Builder, Parquet, of_file};
use crate::split::{Divide, Scanned};
use crate::storage::Storage;
use crate::{Container, DataLayout, DataWarning, OpenOptions, Unlabelled};

pub(super) const FORMAT: Format = Format {
    extensions: &[EXTENSION],
    recognise: |source| source.files(EXTENSION),
    open: |source, files| Ok(Box::new(scan(source, files)?)),
    images: Some(images),
};

/// The extension of their names.
pub(super) const EXTENSION: &str = "parquet";

/// The key under which Hugging Face's `datasets` writes the features of a data set.
const FEATURES: &str = "huggingface";
/// The field of a struct that has an image's bytes.
const BYTES: &str = "bytes";
/// Of CIFAR-100's two columns of labels.
const FINE_LABEL: &str = "fine_label";

/// Lists the images in files.
fn scan(source: &Source, paths: Vec<PathBuf>) -> Result<Scanned<Parquet>, DataError> {
    let (storage, options, root) = (&source.storage, source.options, source.folder());
    let pieces = Pieces::new(paths.clone(), root, &[])?;
    let has_test = pieces.has_test();
    let read = |path: &Path, part: PartName| Table::read(storage, path, options, has_test && part == PartName::Test);
    let tables = read_all(storage, &pieces.files, read)?;
    let mut tests = tables.iter().zip(&pieces.files).filter(|(_, (_, part))| *part == PartName::Test);
    // Tests are often published without labels.
    if (has_test || pieces.held_out == Some(PartName::Test)) && tests.all(|(table, _)| table.is_unlabelled()) {
        let pieces = Pieces::new(paths, root, &[PartName::Test])?;
        let used = tables.into_iter().filter(|table| pieces.files.iter().any(|(path, _)| *path == table.path));
        let mut scanned = join(source, used.collect(), &pieces)?;
        scanned.warnings.push(DataWarning::unlabelled_test(root, "its rows have no labels"));
        return Ok(scanned);
    }
    join(source, tables, &pieces)
}

/// The images in files, whatever their labels.
fn images(source: &Source, paths: Vec<PathBuf>) -> Result<Unlabelled, DataError> {
    let (storage, options) = (&source.storage, source.options);
    let files: Vec<(PathBuf, PartName)> = paths.into_iter().map(|path| (path, PartName::Train)).collect();
    let read = |path: &Path, _: PartName| -> Result<(Column, Vec<RowGroup<1>>), DataError> {
        let opened = opened(storage, path)?;
        let columns = &opened.columns;
        let images = column_of_images(columns, options.path_column.as_deref());
        let images = images.map_err(|problem| DataError::layout(path, problem))?;
        Ok((columns[images].clone(), opened.row_groups([images]).map_err(|error| of_file(error, path))?))
    };
    let (mut builder, mut rows) = (Builder::default(), 0);
    for ((path, _), (column, groups)) in files.iter().zip(read_all(storage, &files, read)?) {
        let first = builder.add(path.clone(), column, &groups)?;
        rows = first + groups.iter().map(|group| group.rows).sum::<u32>();
    }
    let [all] = builder.finish(storage, &[String::new()], [((0..rows).collect(), vec![0; rows as usize])]);
    Ok(Unlabelled::of(DataLayout::Parquet, all.read_with(options.reading)))
}

fn opened(storage: &Storage, path: &Path) -> Result<ParquetFile<Container>, DataError> {
    ParquetFile::open(storage.open(path)?).map_err(|error| of_file(error, path))
}

/// A file's rows, with its own numbers for the labels.
struct Table {
    path: PathBuf,
    images: Column,
    groups: Vec<RowGroup<2>>,
    /// Of each row, a place in `distinct`.
    labels: Vec<u32>,
    distinct: Vec<String>,
    /// The names of the classes, if the labels are places in this list.
    names: Option<Vec<String>>,
}

/// The text that stands for no label.
const NO_LABEL: &str = "";

impl Table {
    /// Reads the labels of a file. With `is_test`, it need have no column of labels.
    fn read(storage: &Storage, path: &Path, options: &OpenOptions, is_test: bool) -> Result<Self, DataError> {
        let opened = opened(storage, path)?;
        let columns = &opened.columns;
        let class_names = opened.key_value(FEATURES).map(names_of_features).unwrap_or_default();
        let refused = |problem: String| DataError::layout(path, problem);
        let images = column_of_images(columns, options.path_column.as_deref()).map_err(refused)?;
        let names: Vec<&str> = class_names.iter().map(|(column, _)| column.as_str()).collect();
        let label = match column_of_labels(columns, images, &names, options.label_column.as_deref()) {
            Err(_) if is_test => {
                let (path, images) = (path.to_owned(), columns[images].clone());
                let (groups, labels, distinct) = (Vec::new(), Vec::new(), vec![NO_LABEL.to_owned()]);
                return Ok(Table { path, images, groups, labels, distinct, names: None });
            }
            label => label.map_err(refused)?,
        };
        let groups = opened.row_groups([images, label]).map_err(|error| of_file(error, path))?;
        let (mut distinct, mut labels) = (Distinct::default(), Vec::new());
        let column = &columns[label];
        for group in &groups {
            let values = opened.each_value(label, group.rows, group.chunks[1], |row, value| {
                let text =
                    text_of(value, column.physical).map_err(|problem| format!("row {row} of a group {problem}"))?;
                labels.push(distinct.number(&text));
                Ok(())
            });
            values.map_err(|error| of_file(error, path))?;
        }
        let named = class_names.iter().find(|(named, _)| column.field.is_none() && *named == column.name);
        let names = named.filter(|_| column.physical != PhysicalType::Bytes).map(|(_, names)| names.clone());
        let (path, images) = (path.to_owned(), columns[images].clone());
        Ok(Table { path, images, groups, labels, distinct: distinct.texts, names })
    }

    /// Whether a label is none: `datasets` writes -1 for it.
    fn is_missing(&self, label: &str) -> bool {
        label == NO_LABEL || (label == "-1" && self.names.is_some())
    }

    fn is_unlabelled(&self) -> bool {
        self.distinct.iter().all(|label| self.is_missing(label))
    }

    /// The error of the first row with one of its labels.
    fn error(&self, label: usize, problem: &str) -> DataError {
        let row = self.labels.iter().position(|&own| own as usize == label).unwrap_or_default();
        DataError::layout(self.path.join(row.to_string()), problem)
    }
}

/// One data set of all files.
fn join(source: &Source, tables: Vec<Table>, pieces: &Pieces) -> Result<Scanned<Parquet>, DataError> {
    let root = source.folder();
    let names = tables.iter().find(|table| !table.labels.is_empty()).and_then(|table| table.names.clone());
    let mut distinct = Distinct::default();
    let mut first = Vec::new();
    for (place, table) in tables.iter().enumerate() {
        if table.names != names && !table.labels.is_empty() {
            let problem = "its classes have other names than those of the files before it";
            return Err(DataError::layout(&table.path, problem));
        }
        for (label, text) in table.distinct.iter().enumerate() {
            if table.is_missing(text) {
                return Err(table.error(label, "the row has no label"));
            }
            if distinct.number(text) as usize == first.len() {
                first.push((place, label));
            }
        }
    }
    let is_derived = names.is_none();
    let (classes, labels) = match names {
        Some(names) => {
            let label = |(text, &(place, label)): (&String, &(usize, usize))| {
                let number = text.parse::<u32>().ok().filter(|&number| (number as usize) < names.len());
                let problem = format!("its label is {text}, and there are {} classes, from 0", names.len());
                number.ok_or_else(|| tables[place].error(label, &problem))
            };
            let labels = distinct.texts.iter().zip(&first).map(label).collect::<Result<Vec<u32>, DataError>>()?;
            (names, labels)
        }
        None => sort_classes(&distinct.texts).map_err(|(class, problem)| {
            let (place, label) = first[class];
            tables[place].error(label, &problem)
        })?,
    };
    let mut builder = Builder::default();
    let mut parts: [(Vec<u32>, Vec<u32>); 3] = Default::default();
    for (table, (_, part)) in tables.into_iter().zip(&pieces.files) {
        let own: Vec<u32> = table.distinct.iter().map(|text| labels[distinct.number(text) as usize]).collect();
        let first = builder.add(table.path, table.images, &table.groups)?;
        let (rows, part_labels) = &mut parts[pieces.place_of(*part)];
        rows.extend((first..).take(table.labels.len()));
        part_labels.extend(table.labels.iter().map(|&label| own[label as usize]));
    }
    if parts[0].0.is_empty() {
        return Err(DataError::layout(root, "there are no rows in its Parquet files"));
    }
    let [train, validation, test] = builder.finish(&source.storage, &classes, parts);
    let (held_out, test) = (pieces.held_out.map(|_| validation), pieces.has_test().then_some(test));
    if is_derived {
        check_test_classes(&train, test.as_ref())?;
    }
    let warnings = pieces.warning(root).into_iter().collect();
    Ok(Scanned { held_out, test, warnings, ..Scanned::whole(DataLayout::Parquet, source.root, train) })
}

/// The columns that are a `ClassLabel` in the JSON text that `datasets` writes, with their names; none of any other text.
fn names_of_features(text: &[u8]) -> Vec<(String, Vec<String>)> {
    let Ok(json) = serde_json::from_slice::<Json>(text) else { return Vec::new() };
    let features = json.pointer("/info/features").and_then(Json::as_object);
    let named = features.into_iter().flatten().filter_map(|(column, feature)| {
        let names = feature.get("names").filter(|_| feature.get("_type").is_some_and(|kind| kind == "ClassLabel"))?;
        let names = names.as_array()?.iter().map(|name| name.as_str().map(str::to_owned)).collect::<Option<_>>()?;
        Some((column.clone(), names))
    });
    named.collect()
}

/// A label as text.
fn text_of(value: Option<&[u8]>, physical: PhysicalType) -> Result<String, &'static str> {
    let Some(value) = value else { return Ok(NO_LABEL.to_owned()) };
    match (physical, value) {
        (PhysicalType::Bytes, text) => match std::str::from_utf8(text) {
            Ok(text) => Ok(text.trim().to_owned()),
            Err(_) => Err("has a label that is not valid UTF-8"),
        },
        (_, value) => {
            // A number of 4 or 8 bytes: those beyond are its sign.
            let sign = if value.last().is_some_and(|last| *last >= 128) { 0xFF } else { 0 };
            let mut bytes = [sign; 8];
            bytes.iter_mut().zip(value).for_each(|(byte, own)| *byte = *own);
            Ok(i64::from_le_bytes(bytes).to_string())
        }
    }
}

/// `image.bytes`.
fn full_name(column: &Column) -> String {
    match &column.field {
        Some(field) => format!("{}.{field}", column.name),
        None => column.name.clone(),
    }
}

/// The place of the column that has the bytes of images.
fn column_of_images(columns: &[Column], chosen: Option<&str>) -> Result<usize, String> {
    let has_bytes = |column: &Column| {
        let is_field = column.field.as_deref() == Some(BYTES);
        !column.is_list
            && column.physical == PhysicalType::Bytes
            && (is_field || (column.field.is_none() && !column.is_text))
    };
    let found: Vec<usize> = (0..columns.len()).filter(|&place| has_bytes(&columns[place])).collect();
    let of_names = |known: &dyn Fn(&str) -> bool| {
        found.iter().copied().filter(|&place| known(&plain(&columns[place].name))).collect::<Vec<usize>>()
    };
    let named = match chosen {
        Some(chosen) => of_names(&|name| name == plain(chosen)),
        None if found.len() == 1 => found,
        None => of_names(&|name| PATHS.contains(&name)),
    };
    let all = || columns.iter().map(full_name).collect::<Vec<_>>().join(", ");
    match (named.as_slice(), chosen) {
        (&[one], _) => Ok(one),
        (_, Some(chosen)) => Err(format!("it has no column {chosen:?} with images' bytes; its columns are {}", all())),
        ([], None) => {
            Err(format!("none of its columns ({}) is known for images' bytes; choose one with `path_column`", all()))
        }
        (_, None) => {
            Err(format!("several of its columns ({}) have images' bytes; choose one with `path_column`", all()))
        }
    }
}

/// The place of the column that has the labels. `classes` are the columns whose classes have names.
fn column_of_labels(
    columns: &[Column],
    images: usize,
    classes: &[&str],
    chosen: Option<&str>,
) -> Result<usize, String> {
    let beside = |place: &usize| columns[*place].name != columns[images].name;
    let others: Vec<usize> = (0..columns.len()).filter(beside).collect();
    let of_names = |known: &dyn Fn(&str) -> bool| {
        others.iter().copied().filter(|&place| known(&full_name(&columns[place]))).collect::<Vec<usize>>()
    };
    let named = match chosen {
        Some(chosen) => of_names(&|name| plain(name) == plain(chosen)),
        None => match of_names(&|name| LABELS.contains(&plain(name).as_str()) || plain(name) == FINE_LABEL) {
            none if none.is_empty() => of_names(&|name| classes.contains(&name)),
            some => some,
        },
    };
    let all = || others.iter().map(|&place| full_name(&columns[place])).collect::<Vec<_>>().join(", ");
    let column = match (named.as_slice(), chosen) {
        (&[one], _) => one,
        (_, Some(chosen)) => return Err(format!("it has no column {chosen:?}; its columns are {}", all())),
        ([], None) => {
            let problem = "none of its other columns";
            return Err(format!(
                "{problem} ({}) is known for the class of an image; choose one with `label_column`",
                all()
            ));
        }
        (several, None) => {
            let names = several.iter().map(|&place| full_name(&columns[place])).collect::<Vec<_>>().join(", ");
            return Err(format!(
                "it has several columns for the class of an image ({names}); choose one with `label_column`"
            ));
        }
    };
    let Column { physical, is_list, .. } = &columns[column];
    let name = full_name(&columns[column]);
    match physical {
        _ if *is_list => Err(format!("its column {name} has lists: several labels of an image are not supported")),
        PhysicalType::Other(what) => {
            Err(format!("its column {name} has {what}: only whole numbers and texts are classes"))
        }
        PhysicalType::Bytes | PhysicalType::Number { .. } => Ok(column),
    }
}
