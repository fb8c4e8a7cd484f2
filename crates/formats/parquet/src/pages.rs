//! The pages of a column in a group of rows: where they lie, found by their heads.
//!
//! At most 1000 of them may be without values, so that a small file takes little time.

use std::ops::Range;

use crate::metadata::{Chunk, Column};
use crate::page::{Entry, Head, Kind, Page, Undecoded};
use crate::thrift::Fault;
use crate::{ParquetError, ReadAt};

/// Limit of the pages of a chunk that have no values. Writers add at most a few.
const MAX_EMPTY: usize = 1000;
/// Bytes in which the head of a page lies. Writers leave out the least and the largest value if these are long.
const HEAD: u64 = 64 << 10;
const MISCOUNTED: Fault = "its pages have another number of rows than its metadata say";

/// A page of a chunk, and what is before it.
#[derive(Clone, Copy, Debug)]
pub struct PageLocation {
    /// The row of its first value in the group.
    pub first: u32,
    head: Head,
    /// First byte in the file after the head.
    offset: u64,
}

/// The pages of a chunk.
#[derive(Clone, Debug, Default)]
pub struct Pages {
    /// That of its dictionary.
    pub dictionary: Option<PageLocation>,
    /// Each with values.
    pub data: Vec<PageLocation>,
}

impl Pages {
    /// Finds the pages of a chunk of `rows` rows by their heads. It reads twice the bytes of the chunk at most: many small
    /// pages lie in what is read at once.
    ///
    /// # Errors
    /// [`ParquetError::Read`] of the source, or [`ParquetError::Damaged`] if a head is damaged, a page lies beyond the
    /// chunk, or the pages do not have that many rows.
    pub fn find<R: ReadAt>(source: &R, chunk: Chunk, rows: u32) -> Result<Self, ParquetError<R::Error>> {
        Self::find_values(source, chunk, Some(rows))
    }

    /// The same for pages whose rows have any number of values, of which each counts. They are all that the chunk has.
    pub(crate) fn of_lists<R: ReadAt>(source: &R, chunk: Chunk) -> Result<Self, ParquetError<R::Error>> {
        Self::find_values(source, chunk, None)
    }

    fn find_values<R: ReadAt>(source: &R, chunk: Chunk, rows: Option<u32>) -> Result<Self, ParquetError<R::Error>> {
        // A value may take no byte; there are not more of them than of rows otherwise.
        let most = rows.map_or(source.length(), u64::from);
        let mut pages = Pages::default();
        let mut at = chunk.offset;
        let end = chunk.offset + chunk.length;
        let mut row = 0;
        let mut empty = 0;
        let mut from = at;
        let mut bytes = Vec::new();
        while rows.map_or(at < end, |rows| row < rows) {
            let rest = usize::try_from(at - from).ok().and_then(|skipped| bytes.get(skipped..)).unwrap_or_default();
            let window = HEAD.min(end - at) as usize;
            let head = match Head::parse(rest) {
                Err(_) if rest.len() < window => {
                    source.read_at(at, window, &mut bytes).map_err(ParquetError::Read)?;
                    from = at;
                    Head::parse(&bytes)
                }
                parsed => parsed,
            }?;
            let offset = at + head.bytes as u64;
            at = offset + head.packed as u64;
            if at > end {
                return Err("a page is said to lie beyond its column".into());
            }
            let page = PageLocation { first: row, head, offset };
            match head.kind {
                Kind::Dictionary if pages.dictionary.is_none() && pages.data.is_empty() => {
                    pages.dictionary = Some(page);
                }
                Kind::Dictionary => return Err("a column has two dictionaries".into()),
                Kind::Data | Kind::Data2 { .. } if head.values > 0 => {
                    let next = u32::try_from(head.values).ok().and_then(|values| row.checked_add(values));
                    row = next.filter(|&next| u64::from(next) <= most).ok_or(MISCOUNTED)?;
                    pages.data.push(page);
                }
                Kind::Data | Kind::Data2 { .. } | Kind::Other if empty < MAX_EMPTY => empty += 1,
                Kind::Data | Kind::Data2 { .. } | Kind::Other => {
                    return Err("a column has more than 1000 pages without values".into());
                }
            }
        }
        Ok(pages)
    }

    /// The number of the page that has a row of the group.
    pub fn page_of(&self, row: u32) -> usize {
        self.data.partition_point(|page| page.first <= row).saturating_sub(1)
    }

    /// The bytes that reading a page takes at its peak.
    pub fn reading_bytes(&self) -> usize {
        let pages = self.data.iter().chain(&self.dictionary);
        pages.map(|page| page.head.packed + page.head.unpacked).max().unwrap_or(0)
    }
}

impl PageLocation {
    /// Its bytes in the file, without the head.
    pub fn bytes(&self) -> Range<u64> {
        self.offset..self.offset + self.head.packed as u64
    }

    /// Reads the page of a chunk, whose dictionary is `dictionary` if it has one.
    ///
    /// # Errors
    /// [`ParquetError::Read`] of the source, [`ParquetError::Memory`] if there is none for the page, or
    /// [`ParquetError::Damaged`] if its content is damaged, or in an encoding that is not read.
    pub fn read<R: ReadAt>(
        &self,
        source: &R,
        chunk: Chunk,
        column: &Column,
        dictionary: Option<&Page>,
    ) -> Result<Page, ParquetError<R::Error>> {
        let packed = self.packed(source)?;
        Page::decode(&self.head, packed, column, chunk.codec, dictionary).map_err(of_page)
    }

    /// The same of a column of lists, with the place of each value in them.
    pub(crate) fn read_lists<R: ReadAt>(
        &self,
        source: &R,
        chunk: Chunk,
        column: &Column,
        dictionary: Option<&Page>,
    ) -> Result<(Page, Vec<Entry>), ParquetError<R::Error>> {
        let packed = self.packed(source)?;
        Page::decode_lists(&self.head, packed, column, chunk.codec, dictionary).map_err(of_page)
    }

    fn packed<R: ReadAt>(&self, source: &R) -> Result<Vec<u8>, ParquetError<R::Error>> {
        let mut packed = Vec::new();
        source.read_at(self.offset, self.head.packed, &mut packed).map_err(ParquetError::Read)?;
        Ok(packed)
    }
}

fn of_page<E>(why: Undecoded) -> ParquetError<E> {
    match why {
        Undecoded::Damaged(fault) => fault.into(),
        Undecoded::Memory(error) => ParquetError::Memory(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::io;

    use crate::{Codec, PhysicalType};

    /// Bytes in memory, and how many of them were read.
    struct Counted<'a> {
        bytes: &'a [u8],
        total: Cell<usize>,
    }

    impl ReadAt for Counted<'_> {
        type Error = io::Error;

        fn length(&self) -> u64 {
            self.bytes.length()
        }

        fn read_at(&self, offset: u64, length: usize, bytes: &mut Vec<u8>) -> io::Result<()> {
            self.total.set(self.total.get() + length);
            self.bytes.read_at(offset, length, bytes)
        }
    }

    /// The heads of a chunk's pages were read one by one, 64 KiB each: 248 KB of empty pages took eleven seconds.
    #[test]
    fn small_pages_are_not_read_again_and_again() {
        // A data page of one value, or of none, and nothing after its head.
        let page = |values: u8| [0x15, 0, 0x15, 0, 0x15, 0, 0x2C, 0x15, 2 * values, 0x15, 0, 0, 0];
        let check = |pages: &[[u8; 13]], rows: u32, expected: Result<usize, &str>| {
            let file = pages.concat();
            let counted = Counted { bytes: &file, total: Cell::new(0) };
            let length = file.len() as u64;
            let chunk = Chunk { offset: 0, length, unpacked: length, codec: Codec::None };
            let found = Pages::find(&counted, chunk, rows).map(|pages| pages.data.len());
            assert_eq!(found.map_err(|error| error.to_string()), expected.map_err(str::to_owned));
            let total = counted.total.get();
            assert!(total <= 2 * file.len(), "{total} bytes are read of {}", file.len());
        };
        check(&vec![page(1); 20_000], 20_000, Ok(20_000));
        check(&[vec![page(0); 1000], vec![page(1)]].concat(), 1, Ok(1));
        check(&vec![page(0); 20_000], 1, Err("a column has more than 1000 pages without values"));
        check(&vec![page(1); 20_000], 20_001, Err("its metadata end early"));
    }

    /// Lists that are empty take no bytes, so their number has a limit of its own.
    #[test]
    fn values_of_lists_are_not_more_than_bytes() {
        let check = |values: u8, pages: usize, expected: Result<usize, &str>| {
            let file = [0x15, 0, 0x15, 0, 0x15, 0, 0x2C, 0x15, 2 * values, 0x15, 0, 0, 0].repeat(pages);
            let length = file.len() as u64;
            let chunk = Chunk { offset: 0, length, unpacked: length, codec: Codec::None };
            let found = Pages::of_lists(&file.as_slice(), chunk).map(|pages| pages.data.len());
            assert_eq!(found.map_err(|error| error.to_string()), expected.map_err(str::to_owned));
        };
        check(13, 3, Ok(3));
        check(14, 1, Err(MISCOUNTED));
        check(14, 3, Err(MISCOUNTED));
    }

    /// It counted as damage, so a run that skips unreadable samples went on without them.
    #[test]
    fn lack_of_memory_is_no_damage() {
        let source = [0; 16];
        let chunk = Chunk { offset: 0, length: 16, unpacked: 16, codec: Codec::None };
        let column = Column {
            name: String::new(),
            field: None,
            physical: PhysicalType::Bytes,
            is_text: false,
            levels: 1,
            list: None,
        };
        // A page of the newer form with 16 bytes of levels.
        let head = [0x15, 6, 0x15, 32, 0x15, 32, 0x5C, 0x15, 2, 0x35, 0, 0x15, 32, 0x15, 0, 0, 0];
        let mut head = Head::parse(&head).unwrap();
        let read =
            |head: Head| PageLocation { first: 0, head, offset: 0 }.read(&source.as_slice(), chunk, &column, None);
        // More than any machine has.
        head.values = usize::MAX;
        let Err(ParquetError::Memory(error)) = read(head) else { panic!("no error of memory") };
        assert!(error.to_string().starts_with("there is no memory for "), "{error}");
        head.kind = Kind::Other;
        assert!(matches!(read(head), Err(ParquetError::Damaged(_))));
    }
}
