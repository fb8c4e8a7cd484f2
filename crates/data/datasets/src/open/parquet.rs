//! Parquet files: which of their columns count, and the labels of all rows, in parts if the files are.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use enmasse_data::DataError;
use enmasse_parquet::{Column, ListItem, ParquetFile, PhysicalType, RowGroup};
use serde_json::Value as Json;

use super::cells::{Cells, Form, JOIN, Meaning, NUMBERS, TAGS, joined};
use super::classes::{Distinct, LABELS, check_test_classes};
use super::manifest::{PATHS, plain};
use super::parts::PartName;
use super::pieces::{Pieces, read_all};
use super::source::Source;
use super::{Format, PARQUET};
use crate::parquet::{Builder, Parquet, of_file};
use crate::split::{Divide, Scanned};
use crate::storage::Storage;
use crate::targets::Targets;
use crate::{Container, DataLayout, DataWarning, OpenOptions, TaskKind, Unlabelled};

pub(super) const FORMAT: Format = Format {
    extensions: &[PARQUET],
    recognise: |source| source.files(PARQUET),
    open: |source, files| Ok(Box::new(scan(source, files)?)),
    images: Some(images),
};

/// The key under which Hugging Face's `datasets` writes the features of a data set.
const FEATURES: &str = "huggingface";
/// The field of a struct that has an image's bytes.
const BYTES: &str = "bytes";
/// Of CIFAR-100's two columns of labels.
const FINE_LABEL: &str = "fine_label";

/// Lists the images in files.
fn scan(source: &Source, paths: Vec<PathBuf>) -> Result<Scanned<Parquet>, DataError> {
    let storage = &source.storage;
    let options = source.options;
    let root = source.folder();
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
    let mut builder = Builder::default();
    let mut rows = 0;
    for ((path, _), (column, groups)) in files.iter().zip(read_all(storage, &files, read)?) {
        let first = builder.add(path.clone(), column, &groups)?;
        rows = first + groups.iter().map(|group| group.rows).sum::<u32>();
    }
    let [all] = builder.finish(storage, &[String::new()], [((0..rows).collect(), vec![0; rows as usize], None)]);
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
    /// If rows have lists, their values, whose places they are of.
    items: Option<Vec<String>>,
    /// The column of labels.
    column: String,
    /// The names of the classes, if the labels are places in this list.
    names: Option<Vec<String>>,
}

/// The text that stands for no label.
const NO_LABEL: &str = "";
/// The text that stands for no list, since an empty one is a list.
const NO_LIST: &str = "none";

impl Table {
    /// Reads the labels of a file. With `is_test`, it need have no column of labels.
    fn read(storage: &Storage, path: &Path, options: &OpenOptions, is_test: bool) -> Result<Self, DataError> {
        let opened = opened(storage, path)?;
        let columns = &opened.columns;
        let class_names = opened.key_value(FEATURES).map(names_of_features).unwrap_or_default();
        let refused = |problem: String| DataError::layout(path, problem);
        let images = column_of_images(columns, options.path_column.as_deref()).map_err(refused)?;
        let names: Vec<&str> = class_names.iter().map(|(column, _)| column.as_str()).collect();
        let mut table = Table {
            path: path.to_owned(),
            images: columns[images].clone(),
            groups: Vec::new(),
            labels: Vec::new(),
            distinct: vec![NO_LABEL.to_owned()],
            items: None,
            column: String::new(),
            names: None,
        };
        let label = match column_of_labels(columns, images, &names, options) {
            Err(_) if is_test => return Ok(table),
            label => label.map_err(refused)?,
        };
        table.groups = opened.row_groups([images, label]).map_err(|error| of_file(error, path))?;
        let column = &columns[label];
        match column.list {
            None => table.read_values(&opened, label)?,
            Some(_) => table.read_lists(&opened, label)?,
        }
        table.column = full_name(column);
        let named = class_names.into_iter().find(|(named, _)| *named == table.column);
        let is_place = matches!(column.physical, PhysicalType::Number { .. });
        table.names = named.filter(|_| is_place).map(|(_, names)| names);
        Ok(table)
    }

    fn read_values(&mut self, file: &ParquetFile<Container>, label: usize) -> Result<(), DataError> {
        let mut distinct = Distinct::default();
        let labels = &mut self.labels;
        let physical = file.columns[label].physical;
        for group in &self.groups {
            let values = file.each_value(label, group.rows, group.chunks[1], |row, value| {
                let text = text_of(value, physical).map_err(|problem| format!("row {row} of a group {problem}"))?;
                labels.push(distinct.number(&text));
                Ok(())
            });
            values.map_err(|error| of_file(error, &self.path))?;
        }
        self.distinct = distinct.texts;
        Ok(())
    }

    /// Values are kept once, and lists are of their numbers: a small file can have many lists of a long text.
    fn read_lists(&mut self, file: &ParquetFile<Container>, label: usize) -> Result<(), DataError> {
        let (mut distinct, mut items) = (Distinct::default(), Distinct::default());
        let labels = &mut self.labels;
        let physical = file.columns[label].physical;
        for group in &self.groups {
            let (mut list, mut row) = (None, 0);
            let mut end = |list: Option<Vec<u32>>| {
                if let Some(list) = list {
                    let list: Vec<String> = list.iter().map(u32::to_string).collect();
                    labels.push(distinct.number(&joined(list.iter().map(String::as_str))));
                }
            };
            let mut nulls = Vec::new();
            let values = file.each_list(label, group.rows, group.chunks[1], |item| {
                match item {
                    ListItem::Begin { row: begun, is_null } => {
                        end(list.replace(Vec::new()));
                        row = begun;
                        nulls.extend(is_null.then_some(begun));
                    }
                    ListItem::Value(value) => {
                        let text =
                            text_of(value, physical).map_err(|problem| format!("row {row} of a group {problem}"))?;
                        if text == NO_LABEL {
                            return Err(format!("row {row} of a group has a null in its list of labels"));
                        }
                        let number = items.number(&text);
                        list.get_or_insert_default().push(number);
                    }
                }
                Ok(())
            });
            values.map_err(|error| of_file(error, &self.path))?;
            end(list);
            let first = labels.len() - group.rows as usize;
            for row in nulls {
                labels[first + row as usize] = distinct.number(NO_LIST);
            }
        }
        (self.distinct, self.items) = (distinct.texts, Some(items.texts));
        Ok(())
    }

    /// Whether a label is none: `datasets` writes -1 for it.
    fn is_missing(&self, label: &str) -> bool {
        match self.items {
            Some(_) => label == NO_LIST,
            None => label == NO_LABEL || (label == "-1" && self.names.is_some()),
        }
    }

    fn is_unlabelled(&self) -> bool {
        self.labels.iter().all(|label| self.is_missing(&self.distinct[*label as usize]))
    }

    /// The error of the first row with one of its labels.
    fn error(&self, label: usize, problem: &str) -> DataError {
        let row = self.labels.iter().position(|&own| own as usize == label).unwrap_or_default();
        DataError::layout(self.path.join(row.to_string()), problem)
    }
}

/// The labels of all files.
#[derive(Default)]
struct Joined {
    cells: Distinct,
    /// The values of lists, if rows have lists.
    items: Option<Distinct>,
    /// Of each cell, the first file and its number there.
    first: Vec<(usize, usize)>,
    /// Of each file, what its numbers of cells become.
    numbers: Vec<Vec<u32>>,
}

impl Joined {
    fn of(tables: &[Table], names: &Option<Vec<String>>) -> Result<Self, DataError> {
        let has_labels = |table: &&Table| !table.labels.is_empty();
        let are_lists = tables.iter().find(has_labels).is_some_and(|table| table.items.is_some());
        let mut all = Joined { items: are_lists.then(Distinct::default), ..Joined::default() };
        for (place, table) in tables.iter().enumerate() {
            if has_labels(&table) && (table.names != *names || table.items.is_some() != are_lists) {
                let problem = "its classes have other names than those of the files before it";
                return Err(DataError::layout(&table.path, problem));
            }
            let mut numbers = Vec::with_capacity(table.distinct.len());
            for (label, text) in table.distinct.iter().enumerate() {
                if table.is_missing(text) {
                    return Err(table.error(label, "the row has no label"));
                }
                let number = match (&mut all.items, &table.items) {
                    (Some(items), Some(own)) => {
                        let own = text.split(JOIN).filter_map(|item| own.get(item.parse::<usize>().ok()?));
                        let own: Vec<String> = own.map(|item| items.number(item).to_string()).collect();
                        all.cells.number(&joined(own.iter().map(String::as_str)))
                    }
                    _ => all.cells.number(text),
                };
                if number as usize == all.first.len() {
                    all.first.push((place, label));
                }
                numbers.push(number);
            }
            all.numbers.push(numbers);
        }
        Ok(all)
    }

    /// What the cells mean. Numbers are places in the list of names, if there is one.
    fn meaning(
        &self,
        tables: &[Table],
        names: Option<Vec<String>>,
        task: Option<TaskKind>,
    ) -> Result<Meaning, DataError> {
        let error = |cell: usize, problem: &str| {
            let (place, label) = self.first[cell];
            tables[place].error(label, problem)
        };
        let items = self.items.as_ref().map(|items| items.texts.as_slice());
        let Some(names) = names else {
            let column = tables.iter().map(|table| table.column.clone()).find(|column| !column.is_empty());
            let form = if items.is_some() { Form::Lists } else { Form::Text };
            let columns = [column.unwrap_or_default()];
            let cells = Cells { columns: &columns, form, texts: &self.cells.texts, items };
            return cells.meaning(task).map_err(|(cell, problem)| error(cell, &problem));
        };
        let label = |cell: usize, text: &String| {
            let number = text.parse::<u32>().ok().filter(|&number| (number as usize) < names.len());
            let problem = || format!("its label is {text}, and there are {} classes, from 0", names.len());
            number.ok_or_else(|| error(cell, &problem()))
        };
        let labels = (0..).zip(&self.cells.texts).map(|(cell, text)| match items {
            None => Ok(BTreeSet::from([label(cell, text)?])),
            Some(items) => {
                let own = text.split(JOIN).filter_map(|item| items.get(item.parse::<usize>().ok()?));
                own.map(|item| label(cell, item)).collect()
            }
        });
        let labels = labels.map(|own| Ok(own?.into_iter().collect())).collect::<Result<Vec<Vec<u32>>, DataError>>()?;
        Ok(match items.is_some() || task == Some(TaskKind::MultiLabel) {
            true => Meaning::Labels { names, labels },
            false => Meaning::Classes { names, labels: labels.into_iter().flatten().collect() },
        })
    }
}

/// One data set of all files.
fn join(source: &Source, tables: Vec<Table>, pieces: &Pieces) -> Result<Scanned<Parquet>, DataError> {
    let root = source.folder();
    let names = tables.iter().find(|table| !table.labels.is_empty()).and_then(|table| table.names.clone());
    let is_derived = names.is_none();
    let joined = Joined::of(&tables, &names)?;
    if joined.cells.texts.is_empty() {
        return Err(DataError::layout(root, "there are no rows in its Parquet files"));
    }
    let meaning = joined.meaning(&tables, names, source.options.task)?;
    let mut builder = Builder::default();
    let mut parts: [(Vec<u32>, Vec<u32>, Option<Targets>); 3] =
        [(); 3].map(|()| (Vec::new(), Vec::new(), meaning.no_targets()));
    for ((table, (_, part)), numbers) in tables.into_iter().zip(&pieces.files).zip(&joined.numbers) {
        let first = builder.add(table.path, table.images, &table.groups)?;
        let (rows, labels, targets) = &mut parts[pieces.place_of(*part)];
        rows.extend((first..).take(table.labels.len()));
        for label in &table.labels {
            let cell = numbers[*label as usize] as usize;
            labels.push(meaning.class(cell));
            targets.iter_mut().for_each(|targets| meaning.add(cell, None, targets));
        }
    }
    if parts[0].0.is_empty() {
        return Err(DataError::layout(root, "there are no rows in its Parquet files"));
    }
    let [train, validation, test] = builder.finish(&source.storage, meaning.names(), parts);
    let held_out = pieces.held_out.map(|_| validation);
    let test = pieces.has_test().then_some(test);
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
        // Of a list the feature of its values.
        let feature = feature.get("feature").or_else(|| feature.as_array()?.first()).unwrap_or(feature);
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
        (PhysicalType::Float { .. }, value) => Ok(match (value.first_chunk::<8>(), value.first_chunk::<4>()) {
            (Some(value), _) => f64::from_le_bytes(*value).to_string(),
            (None, Some(value)) => f32::from_le_bytes(*value).to_string(),
            (None, None) => NO_LABEL.to_owned(),
        }),
        (_, value) => {
            // A number of 4 or 8 bytes: those beyond are its sign.
            let sign = if value.last().is_some_and(|last| *last >= 128) { 0xFF } else { 0 };
            let mut bytes = [sign; 8];
            bytes.iter_mut().zip(value).for_each(|(byte, own)| *byte = *own);
            Ok(i64::from_le_bytes(bytes).to_string())
        }
    }
}

/// `image.bytes`; of a column of lists the name of the column.
fn full_name(column: &Column) -> String {
    match &column.field {
        Some(_) if column.list.is_some_and(|list| list.depth == 1) => column.name.clone(),
        Some(field) => format!("{}.{field}", column.name),
        None => column.name.clone(),
    }
}

/// The place of the column that has the bytes of images.
fn column_of_images(columns: &[Column], chosen: Option<&str>) -> Result<usize, String> {
    let has_bytes = |column: &Column| {
        let is_field = column.field.as_deref() == Some(BYTES);
        column.list.is_none()
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
    options: &OpenOptions,
) -> Result<usize, String> {
    let chosen = options.label_column.as_deref();
    let beside = |place: &usize| columns[*place].name != columns[images].name;
    let others: Vec<usize> = (0..columns.len()).filter(beside).collect();
    let of_names = |known: &dyn Fn(&str) -> bool| {
        others.iter().copied().filter(|&place| known(&full_name(&columns[place]))).collect::<Vec<usize>>()
    };
    let named = match chosen {
        Some(chosen) => of_names(&|name| plain(name) == plain(chosen)),
        None => {
            let usual = |name: &str| LABELS.contains(&plain(name).as_str()) || plain(name) == FINE_LABEL;
            let other = |name: &str| [&TAGS[..], &NUMBERS].concat().contains(&plain(name).as_str());
            let named = |name: &str| classes.contains(&name);
            let known: [&dyn Fn(&str) -> bool; 3] = [&usual, &named, &other];
            known.into_iter().map(|known| of_names(known)).find(|found| !found.is_empty()).unwrap_or_default()
        }
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
    let Column { physical, list, .. } = &columns[column];
    let name = full_name(&columns[column]);
    match physical {
        _ if list.is_some_and(|list| list.depth > 1) => {
            Err(format!("its column {name} has lists of lists, and images have one list of labels"))
        }
        PhysicalType::Other(what) => {
            Err(format!("its column {name} has {what}: only numbers and texts are classes, labels or numbers"))
        }
        PhysicalType::Bytes | PhysicalType::Number { .. } | PhysicalType::Float { .. } => Ok(column),
    }
}
