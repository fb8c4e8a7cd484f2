//! Writes a table of texts, with a list of numbers in each row, as a Parquet file: pages of plain values without compression,
//! which every reader takes.
//!
//! Source: the format's `parquet.thrift`, and its descriptions of encodings and of nested values.

use std::io::{self, Write};

use crate::file::MAGIC;
use crate::thrift::Writer;

/// A group of rows, which memory holds until it is written, has no more rows and numbers than these.
const MAX_ROWS: usize = 1 << 16;
const MAX_NUMBERS: usize = 1 << 22;

/// The format's numbers for what is written here.
const FLOAT: i32 = 4;
const BYTES: i32 = 6;
const PLAIN: i32 = 0;
const RUNS: i32 = 3;
const REQUIRED: i32 = 0;
const REPEATED: i32 = 2;
const UTF8: i32 = 0;
const LIST: i32 = 3;

/// Writes rows of some texts and a list of f32, which is as long in every row.
///
/// ```
/// use enmasse_parquet::TableWriter;
///
/// let mut table = TableWriter::new(Vec::new(), ["path"], "features", 2)?;
/// table.row(["a.jpg"], &[0.5, 1.0])?;
/// let bytes = table.finish()?;
/// assert_eq!(enmasse_parquet::ParquetFile::open(bytes.as_slice()).unwrap().columns[0].name, "path");
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct TableWriter<W, const N: usize> {
    out: W,
    /// Bytes that are written.
    at: usize,
    names: [&'static str; N],
    lists: &'static str,
    /// Numbers of a list.
    width: usize,
    /// The texts and the numbers of the present group, as they stand in pages.
    texts: [Vec<u8>; N],
    numbers: Vec<u8>,
    rows: usize,
    /// What the file says of the groups before, and their rows.
    groups: Vec<Writer>,
    written: usize,
}

impl<W: Write, const N: usize> TableWriter<W, N> {
    /// Begins a file with columns of texts, and one of lists of `width` numbers.
    pub fn new(mut out: W, names: [&'static str; N], lists: &'static str, width: usize) -> io::Result<Self> {
        out.write_all(MAGIC)?;
        let (texts, numbers, groups) = ([const { Vec::new() }; N], Vec::new(), Vec::new());
        Ok(TableWriter { out, at: MAGIC.len(), names, lists, width, texts, numbers, rows: 0, groups, written: 0 })
    }

    /// Appends a row.
    pub fn row(&mut self, texts: [&str; N], numbers: &[f32]) -> io::Result<()> {
        if numbers.len() != self.width {
            return Err(io::Error::other(format!("a list has {} numbers, not {}", numbers.len(), self.width)));
        }
        for (column, text) in self.texts.iter_mut().zip(texts) {
            column.extend((text.len() as u32).to_le_bytes());
            column.extend(text.bytes());
        }
        self.numbers.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        self.rows += 1;
        if self.rows == MAX_ROWS || self.rows * self.width >= MAX_NUMBERS { self.end_group() } else { Ok(()) }
    }

    /// Writes what the file says of itself, and returns the place to which it was written.
    pub fn finish(mut self) -> io::Result<W> {
        if self.rows > 0 {
            self.end_group()?;
        }
        let children = |count: usize| count as i32;
        let text = |name: &str| {
            let is_text = Writer::default().inner(1, Writer::default());
            Writer::default().int(1, BYTES).int(3, REQUIRED).text(4, name).int(6, UTF8).inner(10, is_text)
        };
        let mut schema = vec![Writer::default().text(4, "schema").int(5, children(N + 1))];
        schema.extend(self.names.iter().map(|name| text(name)));
        let is_list = Writer::default().inner(3, Writer::default());
        let list = Writer::default().int(3, REQUIRED).text(4, self.lists).int(5, children(1));
        schema.push(list.int(6, LIST).inner(10, is_list));
        schema.push(Writer::default().int(3, REPEATED).text(4, "list").int(5, children(1)));
        schema.push(Writer::default().int(1, FLOAT).int(3, REQUIRED).text(4, "element"));
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
        for column in 0..N {
            let page = std::mem::take(&mut self.texts[column]);
            chunks.push(self.chunk(&[self.names[column]], BYTES, rows, &[&page])?);
        }
        let (levels, numbers) = (levels(rows, self.width), std::mem::take(&mut self.numbers));
        let path = [self.lists, "list", "element"];
        chunks.push(self.chunk(&path, FLOAT, rows * self.width, &[&levels, &numbers])?);
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
        let (bytes, start) = (size(parts.iter().map(|part| part.len()).sum())?, self.at as i64);
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
        let mut table = TableWriter::new(Vec::new(), ["path", "class"], "features", width).unwrap();
        rows.iter().for_each(|(path, class, numbers)| table.row([path, class], numbers).unwrap());
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
        let (mut texts, mut numbers) = ([Vec::new(), Vec::new()], Vec::new());
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
    fn a_list_of_another_length_is_refused() {
        let mut table = TableWriter::new(Vec::new(), ["path"], "features", 2).unwrap();
        assert_eq!(table.row(["a"], &[1.0]).unwrap_err().to_string(), "a list has 1 numbers, not 2");
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
