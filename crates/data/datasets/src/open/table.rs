//! Rows of CSV, TSV and lines of JSON, one at a time, with the line of each for error messages.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use enmasse_data::DataError;
use enmasse_system::files::open_regular;
use serde_json::{Map, Value as Json};

use super::cells::joined;
use crate::scan::has_extension;

/// Limit of a table's bytes. A row may take as much memory, if it never ends.
const MAX_BYTES: u64 = 4 << 30;

/// One value of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value<'a> {
    /// The row has none.
    Nothing,
    /// A text, or a number as it is written.
    Text(&'a str),
    /// A list of such, joined as [`joined`] joins them.
    List(&'a str),
    /// An object, or a list of lists.
    Nested,
}

impl<'a> Value<'a> {
    pub fn text(self) -> Option<&'a str> {
        match self {
            Value::Text(text) => Some(text),
            Value::Nothing | Value::List(_) | Value::Nested => None,
        }
    }
}

/// A table whose columns have names.
pub(super) struct Rows {
    path: PathBuf,
    columns: Vec<String>,
    form: Form,
}

enum Form {
    Separated(csv::Reader<File>),
    Json(BufReader<File>),
}

impl Rows {
    /// Opens a table by the extension of its name. The columns of lines of JSON are those of the first line.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let failed = |source| DataError::read(path, source);
        let file = open_regular(path).map_err(failed)?;
        if file.metadata().map_err(failed)?.len() > MAX_BYTES {
            return Err(DataError::layout(path, format!("it has more than {MAX_BYTES} bytes")));
        }
        let mut lines = BufReader::new(file);
        let mut first = Vec::new();
        lines.by_ref().take(1 << 20).read_until(b'\n', &mut first).map_err(failed)?;
        lines.rewind().map_err(failed)?;
        let path = path.to_owned();
        if has_extension(&path.to_string_lossy(), &["jsonl", "ndjson"]) {
            let object = parse(&first).map_err(|problem| at_line(&path, 1, &problem))?;
            return Ok(Rows { path, columns: object.keys().cloned().collect(), form: Form::Json(lines) });
        }
        let has = |byte: u8| first.contains(&byte);
        let delimiter = match has_extension(&path.to_string_lossy(), &["tsv"]) {
            true => b'\t',
            // Spreadsheets of some countries separate by semicolons.
            false => [b',', b';', b'\t'].into_iter().find(|&delimiter| has(delimiter)).unwrap_or(b','),
        };
        let mut reader = csv::ReaderBuilder::new().delimiter(delimiter).from_reader(lines.into_inner());
        let columns = reader.headers().map_err(|error| of_csv(&path, &error))?.iter().map(str::to_owned).collect();
        Ok(Rows { path, columns, form: Form::Separated(reader) })
    }

    /// Names of the columns.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Calls `row` with the line and the values of the `wanted` columns for each row. A problem that it returns becomes an error
    /// that names file and line.
    pub fn each(
        self,
        wanted: &[&str],
        mut row: impl FnMut(u32, &[Value]) -> Result<(), String>,
    ) -> Result<(), DataError> {
        let Rows { path, columns, form } = self;
        match form {
            Form::Separated(mut reader) => {
                let place = |name: &&str| columns.iter().position(|column| column == name);
                let places: Vec<Option<usize>> = wanted.iter().map(place).collect();
                let mut record = csv::StringRecord::new();
                while reader.read_record(&mut record).map_err(|error| of_csv(&path, &error))? {
                    let line = record.position().map_or(0, |position| position.line() as u32);
                    let value = |place: &Option<usize>| place.and_then(|place| record.get(place));
                    let values: Vec<Value> =
                        places.iter().map(|place| value(place).map_or(Value::Nothing, Value::Text)).collect();
                    row(line, &values).map_err(|problem| at_line(&path, line, &problem))?;
                }
            }
            Form::Json(mut lines) => {
                let mut bytes = Vec::new();
                let mut number = 0;
                loop {
                    bytes.clear();
                    number += 1;
                    let read = lines.read_until(b'\n', &mut bytes).map_err(|source| DataError::read(&path, source))?;
                    if read == 0 {
                        break;
                    }
                    if bytes.trim_ascii().is_empty() {
                        continue;
                    }
                    let failed = |problem: String| at_line(&path, number, &problem);
                    let object = parse(&bytes).map_err(failed)?;
                    let texts: Vec<Cell> = wanted.iter().map(|name| Cell::of(object.get(*name))).collect();
                    let values: Vec<Value> = texts.iter().map(Cell::value).collect();
                    row(number, &values).map_err(failed)?;
                }
            }
        }
        Ok(())
    }
}

/// A value of an object, with the text that it is compared by.
enum Cell<'a> {
    Nothing,
    Text(Cow<'a, str>),
    List(String),
    Nested,
}

impl<'a> Cell<'a> {
    fn of(value: Option<&'a Json>) -> Self {
        match value {
            None | Some(Json::Null) => Cell::Nothing,
            Some(Json::Array(items)) => {
                let items: Option<Vec<Cow<str>>> = items.iter().map(text_of).collect();
                items.map_or(Cell::Nested, |items| Cell::List(joined(items.iter().map(|item| item.trim()))))
            }
            Some(value) => text_of(value).map_or(Cell::Nested, Cell::Text),
        }
    }

    fn value(&self) -> Value<'_> {
        match self {
            Cell::Nothing => Value::Nothing,
            Cell::Text(text) => Value::Text(text),
            Cell::List(joined) => Value::List(joined),
            Cell::Nested => Value::Nested,
        }
    }
}

/// A text, or a number as it is written.
fn text_of(value: &Json) -> Option<Cow<'_, str>> {
    match value {
        Json::String(text) => Some(Cow::Borrowed(text)),
        Json::Number(number) => Some(Cow::Owned(number.to_string())),
        Json::Bool(truth) => Some(Cow::Owned(truth.to_string())),
        Json::Null | Json::Array(_) | Json::Object(_) => None,
    }
}

fn parse(line: &[u8]) -> Result<Map<String, Json>, String> {
    let line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line);
    match serde_json::from_slice(line) {
        Ok(Json::Object(object)) => Ok(object),
        Ok(_) => Err("it is not a JSON object".to_owned()),
        Err(error) => Err(format!("it is not JSON: {error}")),
    }
}

fn at_line(path: &Path, line: u32, problem: &str) -> DataError {
    DataError::layout(path, format!("line {line}: {problem}"))
}

fn of_csv(path: &Path, error: &csv::Error) -> DataError {
    let line = error.position().map_or(1, |position| position.line() as u32);
    match error.kind() {
        csv::ErrorKind::Utf8 { .. } => at_line(path, line, "it is not valid UTF-8"),
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            at_line(path, line, &format!("it has {len} fields, and the first line names {expected_len} columns"))
        }
        _ => at_line(path, line, &error.to_string()),
    }
}
