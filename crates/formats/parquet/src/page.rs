//! Pages of a column: the head of each, decompression, and where in it each row's value lies.

use std::io::{self, Read};
use std::sync::Arc;

use enmasse_system::files::reserve;
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

use crate::encoding::each_number;
use crate::metadata::{Codec, Column, PhysicalType};
use crate::thrift::{Fault, Reader};

/// Limit of a page's bytes, with and without compression.
const MAX_BYTES: usize = 1 << 30;
/// How many times as large a page may become, if it becomes larger than [`SMALL`]: images hardly shrink.
const MAX_EXPANSION: usize = 1000;
const SMALL: usize = 1 << 20;
/// Memory that Zstandard may ask for, if the page is smaller: writers that do not know a page's length ask for as much.
const WINDOW: usize = 8 << 20;

/// What kind of page a head is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Dictionary,
    /// Of the older form, in which levels are compressed with the values.
    Data,
    /// Of the newer form: bytes of repetitions and levels, which are not compressed, and whether the values are.
    Data2 {
        repetitions: usize,
        levels: usize,
        is_compressed: bool,
    },
    /// Nothing that has values.
    Other,
}

/// The head of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub kind: Kind,
    /// Bytes of the head itself.
    pub bytes: usize,
    /// Bytes that follow it.
    pub packed: usize,
    /// Bytes without compression.
    pub unpacked: usize,
    /// Values, null ones among them.
    pub values: usize,
    encoding: i64,
}

impl Head {
    /// The head at the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, Fault> {
        let mut kind = -1;
        let mut packed = -1;
        let mut unpacked = -1;
        let mut values = 0;
        let mut encoding = 0;
        let (mut repetitions, mut levels, mut is_compressed) = (0, 0, true);
        let mut reader = Reader::new(bytes);
        reader.each_field(|reader, number, of| {
            match number {
                1 => kind = reader.number(of)?,
                2 => unpacked = reader.number(of)?,
                3 => packed = reader.number(of)?,
                5 | 7 => reader.each_field(|reader, number, of| {
                    match number {
                        1 => values = reader.number(of)?,
                        2 => encoding = reader.number(of)?,
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?,
                8 => reader.each_field(|reader, number, of| {
                    match number {
                        1 => values = reader.number(of)?,
                        4 => encoding = reader.number(of)?,
                        5 => levels = reader.number(of)?,
                        6 => repetitions = reader.number(of)?,
                        7 => is_compressed = reader.truth(of)?,
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let size = |number: i64| usize::try_from(number).ok().filter(|&size| size <= MAX_BYTES).ok_or(SIZE);
        Ok(Head {
            kind: match kind {
                0 => Kind::Data,
                2 => Kind::Dictionary,
                3 => Kind::Data2 { repetitions: size(repetitions)?, levels: size(levels)?, is_compressed },
                _ => Kind::Other,
            },
            bytes: reader.position(),
            packed: size(packed)?,
            unpacked: size(unpacked)?,
            values: size(values)?,
            encoding,
        })
    }
}

const SIZE: Fault = "a page has more than 1 GiB, or a negative size";
const CUT: Fault = "a page ends early";

/// Where the value of a row lies in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    offset: u32,
    /// [`NULL`] if the row has no value.
    length: u32,
}

const NULL: u32 = u32::MAX;

/// Why a page cannot be decoded.
#[derive(Debug)]
pub(crate) enum Undecoded {
    /// The file is at fault.
    Damaged(Fault),
    /// There is no memory for it here and now.
    Memory(io::Error),
}

impl From<Fault> for Undecoded {
    fn from(fault: Fault) -> Self {
        Undecoded::Damaged(fault)
    }
}

impl From<io::Error> for Undecoded {
    fn from(error: io::Error) -> Self {
        Undecoded::Memory(error)
    }
}

/// The values of a page, or of a dictionary.
#[derive(Debug, Default)]
pub struct Page {
    bytes: Arc<Vec<u8>>,
    places: Vec<Place>,
}

impl Page {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The value of a row; `None` if it is null.
    pub fn value(&self, row: usize) -> Option<&[u8]> {
        let Place { offset, length } = *self.places.get(row)?;
        self.bytes.get(offset as usize..)?.get(..length as usize)
    }

    /// Bytes in memory.
    pub fn size(&self) -> usize {
        self.bytes.len() + self.places.len() * size_of::<Place>()
    }

    /// Decodes a page of `column` from what follows its head. `dictionary` is that of its chunk.
    pub(crate) fn decode(
        head: &Head,
        packed: Vec<u8>,
        column: &Column,
        codec: Codec,
        dictionary: Option<&Page>,
    ) -> Result<Self, Undecoded> {
        let count = head.values;
        match head.kind {
            Kind::Dictionary => {
                let bytes = unpack(packed, codec, head.unpacked)?;
                let places = plain(&bytes, 0, column.physical, count)?;
                Ok(Page { bytes: Arc::new(bytes), places })
            }
            Kind::Data | Kind::Data2 { .. } => {
                let Unpacked { bytes, at, levels, .. } = split(head, packed, column, codec)?;
                let present = match column.levels {
                    0 => None,
                    most => Some(presence(&levels, most, count)?),
                };
                Self::of_values(bytes, at, head, column, present, dictionary)
            }
            Kind::Other => Err("a page has no values".into()),
        }
    }

    /// The same for a column of lists: the values, and of each its place in the lists.
    pub(crate) fn decode_lists(
        head: &Head,
        packed: Vec<u8>,
        column: &Column,
        codec: Codec,
        dictionary: Option<&Page>,
    ) -> Result<(Self, Vec<Entry>), Undecoded> {
        let Unpacked { bytes, at, repetitions, levels } = split(head, packed, column, codec)?;
        let first = column.list.map_or(0, |list| list.entry);
        let (mut entries, mut present): (Vec<Entry>, Vec<bool>) = (list(head.values)?, list(head.values)?);
        each_number(&levels, bits_for(column.levels), head.values, |level| {
            let kind = match level {
                level if level >= first => EntryKind::Value,
                level if level + 1 == first => EntryKind::EmptyList,
                _ => EntryKind::NullList,
            };
            present.push(level == column.levels);
            entries.push(Entry { begins: false, kind });
            Ok(())
        })?;
        let mut begun = entries.iter_mut();
        each_number(&repetitions, 1, head.values, |repetition| {
            if let Some(entry) = begun.next() {
                entry.begins = repetition == 0;
            }
            Ok(())
        })?;
        Ok((Self::of_values(bytes, at, head, column, Some(present), dictionary)?, entries))
    }

    /// The values from `at` on: themselves, or their places in the dictionary.
    fn of_values(
        bytes: Vec<u8>,
        at: usize,
        head: &Head,
        column: &Column,
        present: Option<Vec<bool>>,
        dictionary: Option<&Page>,
    ) -> Result<Self, Undecoded> {
        let count = present.as_ref().map_or(head.values, |present| present.iter().filter(|is| **is).count());
        let (bytes, places) = match head.encoding {
            0 => {
                let places = plain(&bytes, at, column.physical, count)?;
                (Arc::new(bytes), places)
            }
            2 | 8 => {
                let dictionary = dictionary.ok_or("a page has no dictionary")?;
                let mut places = list(count)?;
                // A page of nulls alone has nothing here.
                if count > 0 {
                    let (&width, numbers) = bytes.get(at..).and_then(<[u8]>::split_first).ok_or(CUT)?;
                    each_number(numbers, u32::from(width), count, |number| {
                        places.push(
                            *dictionary
                                .places
                                .get(number as usize)
                                .ok_or("a page has a value beyond its dictionary")?,
                        );
                        Ok(())
                    })?;
                }
                (dictionary.bytes.clone(), places)
            }
            _ => {
                return Err(
                    "its values are written in an encoding that is not read; write it with plain values or dictionaries".into(),
                );
            }
        };
        let places = match present {
            None => places,
            Some(present) => {
                let mut values = places.into_iter();
                let mut rows = list(present.len())?;
                let null = Place { offset: 0, length: NULL };
                rows.extend(present.into_iter().map(|is| if is { values.next().unwrap_or(null) } else { null }));
                rows
            }
        };
        Ok(Page { bytes, places })
    }
}

/// A value of a list, or what stands for a list that has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Whether it is the first of a row.
    pub begins: bool,
    pub kind: EntryKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    /// Null or not.
    Value,
    EmptyList,
    NullList,
}

/// A data page without compression.
struct Unpacked {
    bytes: Vec<u8>,
    /// Where the values begin in these.
    at: usize,
    repetitions: Vec<u8>,
    levels: Vec<u8>,
}

/// Separates what is before the values of a data page from them.
fn split(head: &Head, mut packed: Vec<u8>, column: &Column, codec: Codec) -> Result<Unpacked, Undecoded> {
    let (repetitions, levels, is_compressed) = match head.kind {
        Kind::Data2 { repetitions, levels, is_compressed } => (repetitions, levels, is_compressed),
        Kind::Data => {
            let bytes = unpack(packed, codec, head.unpacked)?;
            let mut at = 0;
            let mut next = |is_there: bool| -> Result<Vec<u8>, Undecoded> {
                if !is_there {
                    return Ok(Vec::new());
                }
                let length = *bytes.get(at..).and_then(<[u8]>::first_chunk).ok_or(CUT)?;
                let begin = at + 4;
                at = begin.saturating_add(u32::from_le_bytes(length) as usize);
                Ok(bytes.get(begin..at).ok_or(CUT)?.to_vec())
            };
            let repetitions = next(column.list.is_some())?;
            let levels = next(column.levels > 0)?;
            return Ok(Unpacked { bytes, at, repetitions, levels });
        }
        Kind::Dictionary | Kind::Other => return Err("a page has no values".into()),
    };
    let ahead = repetitions + levels;
    let unpacked = head.unpacked.checked_sub(ahead).ok_or(CUT)?;
    let both = [packed.get(..repetitions), packed.get(repetitions..ahead)].map(|bytes| bytes.map(<[u8]>::to_vec));
    let [Some(repetitions), Some(levels)] = both else { return Err(CUT.into()) };
    packed.drain(..ahead);
    let bytes = unpack(packed, if is_compressed { codec } else { Codec::None }, unpacked)?;
    Ok(Unpacked { bytes, at: 0, repetitions, levels })
}

/// Bits of a number of which `most` is the highest.
fn bits_for(most: u32) -> u32 {
    u32::BITS - most.leading_zeros()
}

/// Which of `count` values are not null, from their levels, of which `most` is the highest.
fn presence(bytes: &[u8], most: u32, count: usize) -> Result<Vec<bool>, Undecoded> {
    let mut present = list(count)?;
    each_number(bytes, bits_for(most), count, |level| {
        present.push(level == most);
        Ok(())
    })?;
    Ok(present)
}

/// The places of `count` values that follow each other from `at` on, texts after their lengths.
fn plain(bytes: &[u8], mut at: usize, physical: PhysicalType, count: usize) -> Result<Vec<Place>, Undecoded> {
    let rest = bytes.len().checked_sub(at).ok_or(CUT)?;
    let least = match physical {
        PhysicalType::Number { bytes } | PhysicalType::Float { bytes } => bytes,
        PhysicalType::Bytes => 4,
        PhysicalType::Other(_) => return Err("its values are no numbers and no bytes".into()),
    };
    if count > rest / least {
        return Err(CUT.into());
    }
    let mut places = list(count)?;
    for _ in 0..count {
        let length = match physical {
            PhysicalType::Bytes => {
                let length = bytes.get(at..).and_then(|rest| rest.first_chunk()).ok_or(CUT)?;
                at += 4;
                u32::from_le_bytes(*length) as usize
            }
            _ => least,
        };
        if length > bytes.len() - at {
            return Err(CUT.into());
        }
        places.push(Place { offset: at as u32, length: length as u32 });
        at += length;
    }
    Ok(places)
}

/// An empty list with memory for `count` elements.
fn list<T>(count: usize) -> io::Result<Vec<T>> {
    let mut list = Vec::new();
    reserve(&mut list, count)?;
    Ok(list)
}

/// The bytes without compression: exactly `length`.
fn unpack(packed: Vec<u8>, codec: Codec, length: usize) -> Result<Vec<u8>, Undecoded> {
    const DAMAGED: Fault = "a page is damaged: it cannot be decompressed";
    if length > SMALL && length / MAX_EXPANSION > packed.len() {
        return Err("a page is said to become more than a thousand times as large".into());
    }
    let mut bytes;
    match codec {
        Codec::None => bytes = packed,
        Codec::Snappy if length == 0 => bytes = Vec::new(),
        Codec::Snappy => {
            if snap::raw::decompress_len(&packed).ok() != Some(length) {
                return Err(DAMAGED.into());
            }
            bytes = list(length)?;
            bytes.resize(length, 0);
            snap::raw::Decoder::new().decompress(&packed, &mut bytes).map_err(|_| DAMAGED)?;
        }
        Codec::Gzip => bytes = read(flate2::read::MultiGzDecoder::new(packed.as_slice()), length)?.ok_or(DAMAGED)?,
        Codec::Zstd => {
            let mut decoder = FrameDecoder::new();
            decoder.set_max_window_size(length.max(WINDOW) as u64);
            let decoder = StreamingDecoder::new_with_decoder(packed.as_slice(), decoder).map_err(|_| DAMAGED)?;
            bytes = read(decoder, length)?.ok_or(DAMAGED)?;
        }
    }
    if bytes.len() == length { Ok(bytes) } else { Err(DAMAGED.into()) }
}

/// All that `decoder` gives, up to one byte more than `length`; `None` if it fails.
fn read(decoder: impl Read, length: usize) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = list(length)?;
    Ok(decoder.take(length as u64 + 1).read_to_end(&mut bytes).ok().map(|_| bytes))
}
