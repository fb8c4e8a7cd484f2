//! What a Parquet file says of itself at its end: the columns, the groups of rows, and where the
//! values of a column lie.
//!
//! Numbers of a file are compared with its length before they count. No byte belongs to two groups
//! of rows.
//!
//! Source: the format's `parquet.thrift`.

use crate::thrift::{Fault, Reader};

/// How a column's values are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhysicalType {
    /// A whole number.
    Number {
        /// 4 or 8.
        bytes: usize,
    },
    /// A number of IEEE 754.
    Float {
        /// 4 or 8.
        bytes: usize,
    },
    /// Bytes of any length, such as a text.
    Bytes,
    /// What is not read, in words.
    Other(&'static str),
}

impl PhysicalType {
    fn of(number: i64) -> Self {
        match number {
            1 => PhysicalType::Number { bytes: 4 },
            2 => PhysicalType::Number { bytes: 8 },
            6 => PhysicalType::Bytes,
            0 => PhysicalType::Other("true or false"),
            4 => PhysicalType::Float { bytes: 4 },
            5 => PhysicalType::Float { bytes: 8 },
            _ => PhysicalType::Other("values of another type"),
        }
    }
}

/// A column that has values, perhaps in a struct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name, or that of the outermost struct around it.
    pub name: String,
    /// Its name in that struct; the names of more structs are before it.
    pub field: Option<String>,
    /// How its values are written.
    pub physical: PhysicalType,
    /// Whether the bytes are said to be text.
    pub is_text: bool,
    /// Structs and lists around it and the column itself, as far as they may be null or empty.
    pub levels: u32,
    /// `None` if a row has one value at most.
    pub list: Option<List>,
}

/// How a column's rows are lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    /// Lists in lists; only those of depth 1 are read.
    pub depth: u32,
    /// The level of a list's entry, null or not; that of an empty list is one lower.
    pub(crate) entry: u32,
}

/// How pages are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// Not at all.
    None,
    /// Snappy.
    Snappy,
    /// Gzip.
    Gzip,
    /// Zstandard.
    Zstd,
}

/// The values of a column in a group of rows: pages, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// First byte in the file.
    pub offset: u64,
    /// Bytes in the file.
    pub length: u64,
    /// Bytes of the pages without compression.
    pub unpacked: u64,
    /// How its pages are compressed.
    pub codec: Codec,
}

/// A group of rows, with the columns that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowGroup<const N: usize> {
    /// The number of its rows.
    pub rows: u32,
    /// The values of each of these columns.
    pub chunks: [Chunk; N],
}

/// An element of the schema: a struct or a column, in front of those in it.
struct Element {
    name: String,
    physical: Option<PhysicalType>,
    is_text: bool,
    /// 0 for one value, 1 for one or null, 2 for any number.
    repetition: i64,
    children: i64,
}

/// Structs in structs.
const MAX_DEPTH: usize = 16;
/// Columns and structs.
const MAX_ELEMENTS: usize = 4096;
/// Bytes of a column's name.
const MAX_NAME: usize = 1024;

/// The columns of a file, from its metadata.
pub(crate) fn columns(metadata: &[u8]) -> Result<Vec<Column>, String> {
    let mut elements = Vec::new();
    Reader::new(metadata).each_field(|reader, number, kind| {
        match number {
            2 => reader.each_struct(kind, |reader| {
                if elements.len() == MAX_ELEMENTS {
                    return Err("it has too many columns");
                }
                elements.push(Element::read(reader)?);
                Ok(())
            })?,
            5 => reader.each_struct(kind, |reader| read_key_value(reader).map(|_| ()))?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    columns_of(&elements)
}

/// The last value under `key` in a file's metadata, which have been read before.
pub(crate) fn key_value<'a>(metadata: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let mut found = None;
    let read = Reader::new(metadata).each_field(|reader, number, kind| {
        if number != 5 {
            return Ok(false);
        }
        reader.each_struct(kind, |reader| {
            let (own, value) = read_key_value(reader)?;
            if own == key {
                found = Some(value);
            }
            Ok(())
        })?;
        Ok(true)
    });
    read.ok().and(found)
}

fn read_key_value<'a>(reader: &mut Reader<'a>) -> Result<(&'a [u8], &'a [u8]), Fault> {
    let (mut key, mut value) = (&b""[..], &b""[..]);
    reader.each_field(|reader, number, kind| {
        match number {
            1 => key = reader.text(kind)?,
            2 => value = reader.text(kind)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok((key, value))
}

/// The groups of rows in the metadata of a file that has `length` bytes before them, with the chunks of `columns`.
pub(crate) fn row_groups<const N: usize>(
    metadata: &[u8],
    length: u64,
    columns: [usize; N],
) -> Result<Vec<RowGroup<N>>, String> {
    let mut groups = Vec::new();
    let mut fault = None;
    Reader::new(metadata).each_field(|reader, number, kind| {
        if number != 4 {
            return Ok(false);
        }
        reader.each_struct(kind, |reader| {
            let mut rows = 0;
            let mut column = 0;
            let mut chunks = [None; N];
            reader.each_field(|reader, number, kind| {
                match number {
                    1 => reader.each_struct(kind, |reader| {
                        let chunk = read_chunk(reader)?;
                        for (wanted, chunks) in columns.iter().zip(&mut chunks) {
                            if *wanted == column {
                                *chunks = Some(chunk);
                            }
                        }
                        column += 1;
                        Ok(())
                    })?,
                    3 => rows = reader.number(kind)?,
                    _ => return Ok(false),
                }
                Ok(true)
            })?;
            if chunks.iter().any(Option::is_none) {
                return Err("a group of rows lacks a column");
            }
            match row_group(chunks, rows, length) {
                Ok(group) if group.rows > 0 => groups.push(group),
                Ok(_) => {}
                Err(problem) => fault = Some(problem),
            }
            Ok(())
        })?;
        Ok(true)
    })?;
    let rows = groups.iter().map(|group: &RowGroup<N>| u64::from(group.rows)).sum::<u64>();
    let are_shared = (0..N).any(|column| overlap(groups.iter().map(|group| group.chunks[column])));
    match fault {
        Some(problem) => Err(problem),
        None if are_shared => Err("two groups of rows are said to have the same bytes: damaged".to_owned()),
        None if rows > length => Err(format!("it is said to have {rows} rows, in {length} bytes")),
        None => Ok(groups),
    }
}

/// A group of rows, if its chunks lie in the first `length` bytes of the file.
fn row_group<const N: usize>(claimed: [Option<Claimed>; N], rows: i64, length: u64) -> Result<RowGroup<N>, String> {
    let mut chunks = [Chunk { offset: 0, length: 0, unpacked: 0, codec: Codec::None }; N];
    for (chunk, claimed) in chunks.iter_mut().zip(claimed.into_iter().flatten()) {
        *chunk = claimed.checked(length)?;
    }
    // Each row has a value.
    let possible = u32::try_from(rows).ok().filter(|&rows| u64::from(rows) <= length);
    let rows = possible.ok_or_else(|| format!("a group is said to have {rows} rows, in {length} bytes"))?;
    Ok(RowGroup { rows, chunks })
}

/// Whether some of the chunks share bytes. Reading all of them would then take more than the length of the file.
fn overlap(chunks: impl Iterator<Item = Chunk>) -> bool {
    let mut ranges: Vec<(u64, u64)> = chunks.map(|chunk| (chunk.offset, chunk.offset + chunk.length)).collect();
    ranges.sort_unstable();
    ranges.windows(2).any(|pair| pair[1].0 < pair[0].1)
}

impl Element {
    fn read(reader: &mut Reader) -> Result<Self, Fault> {
        let mut element = Element { name: String::new(), physical: None, is_text: false, repetition: 0, children: 0 };
        reader.each_field(|reader, number, kind| {
            match number {
                1 => element.physical = Some(PhysicalType::of(reader.number(kind)?)),
                3 => element.repetition = reader.number(kind)?,
                4 => {
                    let name = reader.text(kind)?;
                    if name.len() > MAX_NAME {
                        return Err("the name of a column is too long");
                    }
                    element.name = String::from_utf8_lossy(name).into_owned();
                }
                5 => element.children = reader.number(kind)?,
                // The older way to say it; 0 is UTF-8.
                6 => element.is_text = reader.number(kind)? == 0,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(element)
    }
}

/// The columns of a schema, in the order of their chunks.
fn columns_of(elements: &[Element]) -> Result<Vec<Column>, String> {
    let mut columns = Vec::new();
    let mut above = Vec::<(&Element, i64)>::new();
    for element in elements.iter().skip(1) {
        while above.pop_if(|(_, left)| *left == 0).is_some() {}
        if let Some((_, left)) = above.last_mut() {
            *left -= 1;
        }
        if above.len() == MAX_DEPTH {
            return Err("its columns are nested too deeply".to_owned());
        }
        let Some(physical) = element.physical else {
            above.push((element, element.children.max(0)));
            continue;
        };
        let mut path = above.iter().map(|(group, _)| *group).chain([element]);
        let repetitions: Vec<i64> = path.clone().map(|element| element.repetition).collect();
        let above_required =
            |repetitions: &[i64]| repetitions.iter().filter(|&&repetition| repetition > 0).count() as u32;
        let list = repetitions.iter().rposition(|repetition| *repetition == 2).map(|last| List {
            depth: repetitions.iter().filter(|repetition| **repetition == 2).count() as u32,
            entry: above_required(&repetitions[..=last]),
        });
        columns.push(Column {
            levels: above_required(&repetitions),
            list,
            name: path.next().map(|first| first.name.clone()).unwrap_or_default(),
            field: path.map(|element| element.name.clone()).reduce(|path, name| format!("{path}.{name}")),
            physical,
            is_text: element.is_text,
        });
    }
    Ok(columns)
}

/// A chunk as it is written, which nobody has compared with the file yet.
#[derive(Clone, Copy)]
struct Claimed {
    data: i64,
    dictionary: Option<i64>,
    length: i64,
    unpacked: i64,
    codec: i64,
    is_elsewhere: bool,
}

fn read_chunk(reader: &mut Reader) -> Result<Claimed, Fault> {
    let mut chunk = Claimed { data: -1, dictionary: None, length: -1, unpacked: -1, codec: 0, is_elsewhere: false };
    reader.each_field(|reader, number, kind| {
        match number {
            1 => chunk.is_elsewhere = !reader.text(kind)?.is_empty(),
            3 => reader.each_field(|reader, number, kind| {
                match number {
                    4 => chunk.codec = reader.number(kind)?,
                    6 => chunk.unpacked = reader.number(kind)?,
                    7 => chunk.length = reader.number(kind)?,
                    9 => chunk.data = reader.number(kind)?,
                    11 => chunk.dictionary = Some(reader.number(kind)?),
                    _ => return Ok(false),
                }
                Ok(true)
            })?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(chunk)
}

impl Claimed {
    /// The chunk, if it lies in the first `length` bytes of the file.
    fn checked(self, length: u64) -> Result<Chunk, String> {
        if self.is_elsewhere {
            return Err("the values of a column are in another file".to_owned());
        }
        let codec = match self.codec {
            0 => Codec::None,
            1 => Codec::Snappy,
            2 => Codec::Gzip,
            6 => Codec::Zstd,
            4 => return Err(unknown_codec("Brotli")),
            5 | 7 => return Err(unknown_codec("LZ4")),
            other => return Err(unknown_codec(&format!("method {other}"))),
        };
        // Some writers name a dictionary at 0 if there is none.
        let begin = self.dictionary.filter(|&at| at > 0 && at < self.data).unwrap_or(self.data);
        let numbers = (u64::try_from(begin), u64::try_from(self.length), u64::try_from(self.unpacked));
        match numbers {
            (Ok(offset), Ok(bytes), Ok(unpacked)) if offset.checked_add(bytes).is_some_and(|end| end <= length) => {
                Ok(Chunk { offset, length: bytes, unpacked, codec })
            }
            _ => Err("a column is said to lie beyond its end: truncated, or damaged".to_owned()),
        }
    }
}

fn unknown_codec(name: &str) -> String {
    format!("it is compressed by {name}; write it again with Snappy, Zstandard, gzip, or none")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups of rows that share a chunk took the time of all of them, from a file of the size of one.
    #[test]
    fn groups_of_rows_with_the_same_bytes_are_refused() {
        let check = |ranges: &[(u64, u64)], expected: bool| {
            let chunk = |&(offset, length): &(u64, u64)| Chunk { offset, length, unpacked: length, codec: Codec::None };
            assert_eq!(overlap(ranges.iter().map(chunk)), expected, "{ranges:?}");
        };
        check(&[], false);
        check(&[(4, 10)], false);
        check(&[(14, 10), (4, 10)], false);
        check(&[(4, 10), (4, 10)], true);
        check(&[(4, 10), (13, 10)], true);
        check(&[(20, 5), (4, 17)], true);
        // A chunk of no bytes has no page.
        check(&[(4, 10), (4, 0)], false);
    }
}
