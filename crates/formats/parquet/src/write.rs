//! Writes a table of texts, numbers and lists of numbers as a Parquet file: pages of plain values without compression, which every
//! reader takes.
//!
//! Source: the format's `parquet.thrift`, and its descriptions of encodings and of nested values.

use std::io::{self, Write};

use crate::file::MAGIC;
use crate::thrift::Writer;

/// A group of rows, which memory holds until it is written, has no more rows and bytes of a column than these.
const MAX_ROWS: usize = 1 << 16;
const MAX_BYTES: usize = 1 << 24;

/// The format's numbers for what is written here.
const FLOAT: i32 = 4;
const DOUBLE: i32 = 5;
const BYTES: i32 = 6;
const PLAIN: i32 = 0;
const RUNS: i32 = 3;
const REQUIRED: i32 = 0;
const REPEATED: i32 = 2;
const UTF8: i32 = 0;
const LIST: i32 = 3;

/// A column of a table, by its name. Every row has a value in it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TableColumn {
    /// Texts.
    Text(String),
    /// Numbers, as f64.
    Number(String),
    /// Lists of f32, of one length.
    Numbers(String, usize),
}

impl TableColumn {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            TableColumn::Text(name) | TableColumn::Number(name) | TableColumn::Numbers(name, _) => name,
        }
    }

    /// What the file says of it.
    fn schema(&self) -> Vec<Writer> {
        let leaf = |physical, name: &str| Writer::default().int(1, physical).int(3, REQUIRED).text(4, name);
        let of = |kind| Writer::default().inner(kind, Writer::default());
        match self {
            TableColumn::Text(name) => vec![leaf(BYTES, name).int(6, UTF8).inner(10, of(1))],
            TableColumn::Number(name) => vec![leaf(DOUBLE, name)],
            TableColumn::Numbers(name, _) => {
                let list = Writer::default().int(3, REQUIRED).text(4, name).int(5, 1).int(6, LIST).inner(10, of(3));
                let inside = Writer::default().int(3, REPEATED).text(4, "list").int(5, 1);
                vec![list, inside, leaf(FLOAT, "element")]
            }
        }
    }
}

/// A value of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Cell<'a> {
    /// Of [`TableColumn::Text`].
    Text(&'a str),
    /// Of [`TableColumn::Number`].
    Number(f64),
    /// Of [`TableColumn::Numbers`].
    Numbers(&'a [f32]),
}

/// Writes the rows of a table.
///
/// ```
/// use enmasse_parquet::{Cell, TableColumn, TableWriter};
///
/// let columns = vec![TableColumn::Text("path".to_owned()), TableColumn::Numbers("features".to_owned(), 2)];
/// let mut table = TableWriter::new(Vec::new(), columns)?;
/// table.row(&[Cell::Text("a.jpg"), Cell::Numbers(&[0.5, 1.0])])?;
/// let bytes = table.finish()?;
/// assert_eq!(enmasse_parquet::ParquetFile::open(bytes.as_slice()).unwrap().columns[0].name, "path");
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct TableWriter<W> {
    out: W,
    /// Bytes that are written.
    at: usize,
    columns: Vec<TableColumn>,
    /// The values of the present group by column, as they stand in pages.
    values: Vec<Vec<u8>>,
    rows: usize,
    /// What the file says of the groups before, and their rows.
    groups: Vec<Writer>,
    written: usize,
}

impl<W: Write> TableWriter<W> {
    /// Begins a file with these columns.
    ///
    /// # Errors
    /// `out` cannot be written to.
    pub fn new(mut out: W, columns: Vec<TableColumn>) -> io::Result<Self> {
        out.write_all(MAGIC)?;
        let values = vec![Vec::new(); columns.len()];
        Ok(TableWriter { out, at: MAGIC.len(), columns, values, rows: 0, groups: Vec::new(), written: 0 })
    }

    /// Appends a row, with a value for each column.
    ///
    /// # Errors
    /// The values are not those of the columns, or cannot be written.
    pub fn row(&mut self, cells: &[Cell]) -> io::Result<()> {
        if cells.len() != self.columns.len() {
            let cells = cells.len();
            let columns = self.columns.len();
            return Err(io::Error::other(format!("a row has {cells} values, not {columns}")));
        }
        for (column, cell) in self.columns.iter().zip(cells) {
            match (column, cell) {
                (TableColumn::Text(_), Cell::Text(_)) | (TableColumn::Number(_), Cell::Number(_)) => {}
                (TableColumn::Numbers(_, width), Cell::Numbers(numbers)) if numbers.len() == *width => {}
                _ => return Err(io::Error::other(format!("{cell:?} is no value of {column:?}"))),
            }
        }
        for (values, cell) in self.values.iter_mut().zip(cells) {
            match cell {
                Cell::Text(text) => {
                    values.extend((text.len() as u32).to_le_bytes());
                    values.extend(text.bytes());
                }
                Cell::Number(number) => values.extend(number.to_le_bytes()),
                Cell::Numbers(numbers) => values.extend(numbers.iter().flat_map(|number| number.to_le_bytes())),
            }
        }
        self.rows += 1;
        let is_full = self.rows == MAX_ROWS || self.values.iter().any(|values| values.len() >= MAX_BYTES);
        if is_full { self.end_group() } else { Ok(()) }
    }

    /// Writes what the file says of itself, and returns the place to which it was written.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish(mut self) -> io::Result<W> {
        if self.rows > 0 {
            self.end_group()?;
        }
        let mut schema = vec![Writer::default().text(4, "schema").int(5, self.columns.len() as i32)];
        schema.extend(self.columns.iter().flat_map(TableColumn::schema));
        let file = Writer::default().int(1, 1).list(2, schema).long(3, self.written as i64).list(4, self.groups);
        let metadata = file.text(6, "enmasse").end();
        self.out.write_all(&metadata)?;
        self.out.write_all(&(metadata.len() as u32).to_le_bytes())?;
        self.out.write_all(MAGIC)?;
        Ok(self.out)
    }

    /// Writes the present group, a page for each column.
    fn end_group(&mut self) -> io::Result<()> {
        let (start, rows) = (self.at, self.rows);
        let mut chunks = Vec::new();
        for at in 0..self.columns.len() {
            let page = std::mem::take(&mut self.values[at]);
            let chunk = match self.columns[at].clone() {
                TableColumn::Text(name) => self.chunk(&[&name], BYTES, rows, &[&page]),
                TableColumn::Number(name) => self.chunk(&[&name], DOUBLE, rows, &[&page]),
                TableColumn::Numbers(name, width) => {
                    self.chunk(&[&name, "list", "element"], FLOAT, rows * width, &[&levels(rows, width), &page])
                }
            };
            chunks.push(chunk?);
        }
        let size = (self.at - start) as i64;
        self.groups.push(Writer::default().list(1, chunks).long(2, size).long(3, rows as i64));
        self.written += rows;
        self.rows = 0;
        Ok(())
    }

    /// Writes a column's values of a group as a page, and returns what the file says of them.
    fn chunk(&mut self, path: &[&str], physical: i32, values: usize, parts: &[&[u8]]) -> io::Result<Writer> {
        let size = |bytes: usize| {
            i32::try_from(bytes).map_err(|_| io::Error::other(format!("a page of {bytes} bytes: the format has 2 GiB")))
        };
        let bytes = size(parts.iter().map(|part| part.len()).sum())?;
        let start = self.at as i64;
        let of_data = Writer::default().int(1, size(values)?).int(2, PLAIN).int(3, RUNS).int(4, RUNS);
        let head = Writer::default().int(1, 0).int(2, bytes).int(3, bytes).inner(5, of_data).end();
        for part in [&[head.as_slice()], parts].concat() {
            self.out.write_all(part)?;
            self.at += part.len();
        }
        let length = self.at as i64 - start;
        let chunk = Writer::default().int(1, physical).ints(2, &[PLAIN, RUNS]).texts(3, path).int(4, 0);
        let chunk = chunk.long(5, values as i64).long(6, length).long(7, length).long(9, start);
        Ok(Writer::default().long(2, start).inner(3, chunk))
    }
}

/// The levels of lists of one length: where each begins, and that all numbers are there. Runs of a bit each, after their bytes.
fn levels(rows: usize, width: usize) -> Vec<u8> {
    let run = |count: usize, bit: u8| {
        let mut run = Vec::new();
        if count > 0 {
            crate::thrift::varint(&mut run, (count as u64) << 1);
            run.push(bit);
        }
        run
    };
    let repetitions = [run(1, 0), run(width.saturating_sub(1), 1)].concat().repeat(rows);
    let definitions = run(rows * width, 1);
    let after_length = |bytes: Vec<u8>| [&(bytes.len() as u32).to_le_bytes()[..], &bytes].concat();
    [after_length(repetitions), after_length(definitions)].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{ListItem, ParquetFile, PhysicalType};

    type Row = (String, String, Vec<f32>);

    fn written(rows: &[Row], width: usize) -> Vec<u8> {
        let text = |name: &str| TableColumn::Text(name.to_owned());
        let columns = vec![text("path"), text("class"), TableColumn::Numbers("features".to_owned(), width)];
        let mut table = TableWriter::new(Vec::new(), columns).unwrap();
        for (path, class, numbers) in rows {
            table.row(&[Cell::Text(path), Cell::Text(class), Cell::Numbers(numbers)]).unwrap();
        }
        table.finish().unwrap()
    }

    fn check(rows: &[Row], width: usize) {
        let bytes = written(rows, width);
        let file = ParquetFile::open(bytes.as_slice()).unwrap();
        let names: Vec<_> = file.columns.iter().map(|column| (column.name.as_str(), column.is_text)).collect();
        assert_eq!(names, [("path", true), ("class", true), ("features", false)]);
        let list = &file.columns[2];
        assert_eq!((list.list.is_some(), list.levels, list.field.as_deref()), (true, 1, Some("list.element")));
        assert_eq!(list.physical, PhysicalType::Float { bytes: 4 });
        let mut texts = [Vec::new(), Vec::new()];
        let mut numbers = Vec::new();
        for group in file.row_groups([0, 1, 2]).unwrap() {
            for (column, texts) in texts.iter_mut().enumerate() {
                let each = |_, text: Option<&[u8]>| {
                    texts.push(String::from_utf8(text.unwrap().to_vec()).unwrap());
                    Ok(())
                };
                file.each_value(column, group.rows, group.chunks[column], each).unwrap();
            }
            let each = |item: ListItem| {
                match item {
                    ListItem::Begin { is_null, .. } => numbers.push(if is_null { vec![f32::NAN] } else { Vec::new() }),
                    ListItem::Value(value) => {
                        numbers.last_mut().unwrap().push(f32::from_le_bytes(value.unwrap().try_into().unwrap()));
                    }
                }
                Ok(())
            };
            file.each_list(2, group.rows, group.chunks[2], each).unwrap();
        }
        let [paths, classes] = texts;
        let found = paths.into_iter().zip(classes).zip(numbers).map(|((path, class), numbers)| (path, class, numbers));
        assert!(found.eq(rows.iter().cloned()));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            (width, rows) in (1usize..70).prop_flat_map(|width| {
                let numbers = prop::collection::vec(-1e30f32..1e30, width);
                (Just(width), prop::collection::vec((".{0,12}", "[a-z]{0,3}", numbers), 0..20))
            })
        ) {
            check(&rows, width);
        }
    }

    #[test]
    fn many_rows_are_several_groups() {
        let rows: Vec<Row> = (0..MAX_ROWS + 3).map(|row| (row.to_string(), String::new(), vec![row as f32])).collect();
        check(&rows, 1);
    }

    #[test]
    fn values_of_other_columns_are_refused() {
        let columns = vec![TableColumn::Text("path".to_owned()), TableColumn::Numbers("features".to_owned(), 2)];
        let mut table = TableWriter::new(Vec::new(), columns).unwrap();
        let mut check = |cells: &[Cell], expected: &str| {
            assert_eq!(table.row(cells).unwrap_err().to_string(), expected);
        };
        check(&[Cell::Text("a")], "a row has 1 values, not 2");
        check(&[Cell::Text("a"), Cell::Numbers(&[1.0])], "Numbers([1.0]) is no value of Numbers(\"features\", 2)");
        check(&[Cell::Number(1.0), Cell::Numbers(&[1.0; 2])], "Number(1.0) is no value of Text(\"path\")");
    }

    #[test]
    fn numbers_are_f64() {
        let numbers = [0.1, -0.0, f64::MAX, f64::NEG_INFINITY];
        let mut table = TableWriter::new(Vec::new(), vec![TableColumn::Number("probability".to_owned())]).unwrap();
        numbers.iter().for_each(|number| table.row(&[Cell::Number(*number)]).unwrap());
        let bytes = table.finish().unwrap();
        let file = ParquetFile::open(bytes.as_slice()).unwrap();
        assert_eq!(file.columns[0].physical, PhysicalType::Float { bytes: 8 });
        let mut found = Vec::new();
        for group in file.row_groups([0]).unwrap() {
            let each = |_, bytes: Option<&[u8]>| {
                found.push(f64::from_le_bytes(bytes.unwrap().try_into().unwrap()));
                Ok(())
            };
            file.each_value(0, group.rows, group.chunks[0], each).unwrap();
        }
        assert!(found.iter().map(|number| number.to_bits()).eq(numbers.iter().map(|number| number.to_bits())));
    }

    /// The script `fixtures/written.py` has read this file with pyarrow and pandas.
    #[test]
    fn others_read_it() {
        let row = |path: &str, class: &str, numbers: [f32; 3]| (path.to_owned(), class.to_owned(), numbers.to_vec());
        let rows = [
            row("a/1.jpg", "a", [0.5, -1.0, 3e38]),
            row("ä/=2,\n\".jpg", "ä", [f32::MIN_POSITIVE, 0.0, f32::NEG_INFINITY]),
            row("", "", [1.0, 2.0, 3.0]),
        ];
        assert_eq!(written(&rows, 3), include_bytes!("../tests/fixtures/written.parquet"));
    }
}
