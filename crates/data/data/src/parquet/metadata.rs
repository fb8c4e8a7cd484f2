//! What a Parquet file says of itself at its end: the columns, the groups of rows, and where the values of a column lie.
//!
//! Source: the format's `parquet.thrift`. Numbers of a file are compared with its length before they count.

use serde_json::Value as Json;

use super::thrift::{Fault, Reader};

/// How a column's values are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Physical {
    Number { bytes: usize },
    Bytes,
    Other(&'static str),
}

impl Physical {
    fn of(number: i64) -> Self {
        match number {
            1 => Physical::Number { bytes: 4 },
            2 => Physical::Number { bytes: 8 },
            6 => Physical::Bytes,
            0 => Physical::Other("true or false"),
            4 | 5 => Physical::Other("fractions"),
            _ => Physical::Other("values of another type"),
        }
    }
}

/// A column that has values, perhaps in a struct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    /// Its name, or that of the outermost struct around it.
    pub name: String,
    /// Its name in that struct; the names of more structs are before it.
    pub field: Option<String>,
    pub physical: Physical,
    /// Whether the bytes are said to be text.
    pub is_text: bool,
    /// Structs around it and the column itself, as far as they may be null.
    pub levels: u32,
    /// Whether a row may have any number of values.
    pub is_list: bool,
}

/// How pages are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    None,
    Snappy,
    Gzip,
    Zstd,
}

/// The values of a column in a group of rows: pages, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// First byte in the file.
    pub offset: u64,
    /// Bytes in the file.
    pub length: u64,
    /// Bytes of the pages without compression.
    pub unpacked: u64,
    pub codec: Codec,
}

/// A group of rows, with the columns that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowGroup {
    pub rows: u32,
    pub images: Chunk,
    pub labels: Chunk,
}

/// What is said of a whole file.
#[derive(Debug, Default)]
pub(crate) struct Metadata {
    pub columns: Vec<Column>,
    /// Names of classes, by column, from the features that Hugging Face's `datasets` writes.
    pub class_names: Vec<(String, Vec<String>)>,
}

/// An element of the schema: a struct or a column, in front of those in it.
struct Element {
    name: String,
    physical: Option<Physical>,
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

impl Metadata {
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let mut elements = Vec::new();
        let mut class_names = Vec::new();
        Reader::new(bytes).each_field(|reader, number, kind| {
            match number {
                2 => reader.each_struct(kind, |reader| {
                    if elements.len() == MAX_ELEMENTS {
                        return Err("it has too many columns");
                    }
                    elements.push(Element::read(reader)?);
                    Ok(())
                })?,
                5 => reader.each_struct(kind, |reader| {
                    let (mut key, mut value) = (&b""[..], &b""[..]);
                    reader.each_field(|reader, number, kind| {
                        match number {
                            1 => key = reader.text(kind)?,
                            2 => value = reader.text(kind)?,
                            _ => return Ok(false),
                        }
                        Ok(true)
                    })?;
                    if key == b"huggingface" {
                        class_names = names_of_features(value);
                    }
                    Ok(())
                })?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(Metadata { columns: columns(&elements)?, class_names })
    }

    /// The groups of rows in the metadata of a file that has `length` bytes before them. `images` and `labels` are places in
    /// [`Metadata::columns`].
    pub fn row_groups(&self, bytes: &[u8], length: u64, images: usize, labels: usize) -> Result<Vec<RowGroup>, String> {
        let mut groups = Vec::new();
        let mut fault = None;
        Reader::new(bytes).each_field(|reader, number, kind| {
            if number != 4 {
                return Ok(false);
            }
            reader.each_struct(kind, |reader| {
                let (mut rows, mut column, mut chunks) = (0, 0, [None, None]);
                reader.each_field(|reader, number, kind| {
                    match number {
                        1 => reader.each_struct(kind, |reader| {
                            let chunk = read_chunk(reader)?;
                            for (place, chunks) in [images, labels].into_iter().zip(&mut chunks) {
                                if place == column {
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
                let [Some(images), Some(labels)] = chunks else { return Err("a group of rows lacks a column") };
                let group = || {
                    let (images, labels) = (images.checked(length)?, labels.checked(length)?);
                    // Each row has an image.
                    let possible = u32::try_from(rows).ok().filter(|&rows| u64::from(rows) <= length);
                    let rows =
                        possible.ok_or_else(|| format!("a group is said to have {rows} rows, in {length} bytes"))?;
                    Ok(RowGroup { rows, images, labels })
                };
                match group() {
                    Ok(group) if group.rows > 0 => groups.push(group),
                    Ok(_) => {}
                    Err(problem) => fault = Some(problem),
                }
                Ok(())
            })?;
            Ok(true)
        })?;
        let rows = groups.iter().map(|group: &RowGroup| u64::from(group.rows)).sum::<u64>();
        let are_shared =
            overlap(groups.iter().map(|group| group.images)) || overlap(groups.iter().map(|group| group.labels));
        match fault {
            Some(problem) => Err(problem),
            None if are_shared => Err("two groups of rows are said to have the same bytes: damaged".to_owned()),
            None if rows > length => Err(format!("it is said to have {rows} rows, in {length} bytes")),
            None => Ok(groups),
        }
    }
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
                1 => element.physical = Some(Physical::of(reader.number(kind)?)),
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
fn columns(elements: &[Element]) -> Result<Vec<Column>, String> {
    let (mut columns, mut above) = (Vec::new(), Vec::<(&Element, i64)>::new());
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
        let count = |repetition: i64| above.iter().filter(|(group, _)| group.repetition == repetition).count() as u32;
        columns.push(Column {
            levels: count(1) + u32::from(element.repetition == 1),
            is_list: count(2) + u32::from(element.repetition == 2) > 0,
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
