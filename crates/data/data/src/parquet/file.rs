//! A Parquet file as it is opened: its metadata, its labels, and the pages of a group of rows.

use std::ops::Range;
use std::path::Path;

use super::metadata::{Chunk, Column, Metadata, RowGroup};
use super::page::{Head, Kind, Page, Undecoded};
use super::thrift::Fault;
use crate::{Container, DataError};

/// The first and the last bytes of a file.
const MAGIC: &[u8; 4] = b"PAR1";
/// Limit of the metadata's bytes: a group of rows takes a few hundred.
const MAX_METADATA: u64 = 256 << 20;
/// Limit of the pages of a chunk that have no values. Writers add at most a few.
const MAX_EMPTY: usize = 1000;
/// Bytes in which the head of a page lies. Writers leave out the least and the largest value if these are long.
const HEAD: u64 = 64 << 10;

/// A file and its metadata, before its columns are chosen.
pub(crate) struct Opened {
    pub container: Container,
    pub metadata: Metadata,
    bytes: Vec<u8>,
}

impl Opened {
    /// Reads what the file says of itself.
    pub fn read(container: Container) -> Result<Self, DataError> {
        let refused = |problem: &str| DataError::layout(container.path(), problem);
        let (mut begin, mut end) = ([0; 4], [0; 8]);
        if container.length() < 12 {
            return Err(refused("it is no Parquet file: it is too short"));
        }
        container.fill(0, &mut begin)?;
        container.fill(container.length() - 8, &mut end)?;
        let [l0, l1, l2, l3, mark @ ..] = end;
        match (&begin, &mark) {
            (MAGIC, MAGIC) => {}
            (b"PARE", _) | (_, b"PARE") => return Err(refused("it is encrypted")),
            (MAGIC, _) => return Err(refused("it lacks its end: truncated, or still being written")),
            _ => return Err(refused("it is no Parquet file")),
        }
        let length = u64::from(u32::from_le_bytes([l0, l1, l2, l3]));
        if length > MAX_METADATA || length > container.length() - 12 {
            return Err(refused("its metadata are said to have more bytes than there are"));
        }
        let mut bytes = Vec::new();
        container.read(container.length() - 8 - length, length as usize, &mut bytes)?;
        let metadata = Metadata::parse(&bytes).map_err(|problem| refused(&problem))?;
        Ok(Opened { container, metadata, bytes })
    }

    /// The groups of rows, of which two columns count.
    pub fn row_groups(&self, images: usize, labels: usize) -> Result<Vec<RowGroup>, DataError> {
        let length = self.container.length() - 8 - self.bytes.len() as u64;
        let groups = self.metadata.row_groups(&self.bytes, length, images, labels);
        groups.map_err(|problem| DataError::layout(self.container.path(), problem))
    }
}

/// A page of a chunk, and what is before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageAt {
    /// The row of its first value in the group.
    pub first: u32,
    head: Head,
    /// First byte in the file after the head.
    offset: u64,
}

/// The pages of a chunk.
#[derive(Clone, Debug, Default)]
pub(super) struct Pages {
    pub dictionary: Option<PageAt>,
    /// Each with values.
    pub data: Vec<PageAt>,
}

/// Why a page cannot be read.
pub(crate) enum PageError {
    /// The file is at fault.
    Damaged(Fault),
    /// It cannot be read.
    Read(DataError),
}

impl From<Fault> for PageError {
    fn from(fault: Fault) -> Self {
        PageError::Damaged(fault)
    }
}

impl PageError {
    /// The error of a whole file.
    pub fn of_file(self, path: &Path) -> DataError {
        match self {
            PageError::Damaged(fault) => DataError::layout(path, fault),
            PageError::Read(error) => error,
        }
    }
}

impl Pages {
    /// Finds the pages of a chunk of `rows` rows by their heads.
    pub fn find(container: &Container, chunk: Chunk, rows: u32) -> Result<Self, PageError> {
        let read = |at, length, bytes: &mut Vec<u8>| container.read(at, length, bytes);
        Self::find_by(read, chunk, rows)
    }

    /// The same with a function that reads bytes of the file. It reads twice the bytes of the chunk at most: many small pages lie in
    /// what is read at once.
    fn find_by(
        read: impl Fn(u64, usize, &mut Vec<u8>) -> Result<(), DataError>,
        chunk: Chunk,
        rows: u32,
    ) -> Result<Self, PageError> {
        let mut pages = Pages::default();
        let (mut at, end, mut row, mut empty) = (chunk.offset, chunk.offset + chunk.length, 0, 0);
        let (mut from, mut bytes) = (at, Vec::new());
        while row < rows {
            let rest = usize::try_from(at - from).ok().and_then(|skipped| bytes.get(skipped..)).unwrap_or_default();
            let window = HEAD.min(end - at) as usize;
            let head = match Head::parse(rest) {
                Err(_) if rest.len() < window => {
                    read(at, window, &mut bytes).map_err(PageError::Read)?;
                    from = at;
                    Head::parse(&bytes)
                }
                parsed => parsed,
            }?;
            let offset = at + head.bytes as u64;
            at = offset + head.packed as u64;
            if at > end {
                return Err(PageError::Damaged("a page is said to lie beyond its column"));
            }
            let page = PageAt { first: row, head, offset };
            match head.kind {
                Kind::Dictionary if pages.dictionary.is_none() && pages.data.is_empty() => {
                    pages.dictionary = Some(page);
                }
                Kind::Dictionary => return Err(PageError::Damaged("a column has two dictionaries")),
                Kind::Data | Kind::Data2 { .. } if head.values > 0 => {
                    let next = u32::try_from(head.values).ok().and_then(|values| row.checked_add(values));
                    row = next.filter(|&next| next <= rows).ok_or(MISCOUNTED)?;
                    pages.data.push(page);
                }
                Kind::Data | Kind::Data2 { .. } | Kind::Other if empty < MAX_EMPTY => empty += 1,
                Kind::Data | Kind::Data2 { .. } | Kind::Other => {
                    return Err(PageError::Damaged("a column has more than 1000 pages without values"));
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

impl PageAt {
    /// Its bytes in the file, without the head.
    pub fn bytes(&self) -> Range<u64> {
        self.offset..self.offset + self.head.packed as u64
    }

    /// Reads the page.
    pub fn read(
        &self,
        container: &Container,
        chunk: Chunk,
        column: &Column,
        dictionary: Option<&Page>,
    ) -> Result<Page, PageError> {
        let mut packed = Vec::new();
        container.read(self.offset, self.head.packed, &mut packed).map_err(PageError::Read)?;
        Page::decode(&self.head, packed, column, chunk.codec, dictionary).map_err(|why| match why {
            Undecoded::Damaged(fault) => PageError::Damaged(fault),
            Undecoded::Memory(source) => PageError::Read(DataError::read(container.path(), source)),
        })
    }
}

const MISCOUNTED: Fault = "its pages have another number of rows than its metadata say";

/// Calls `each` with the label of each row of a group, in order: the bytes of a text or a number.
pub(crate) fn each_label(
    container: &Container,
    column: &Column,
    group: &RowGroup,
    mut each: impl FnMut(u32, Option<&[u8]>) -> Result<(), String>,
) -> Result<(), DataError> {
    let path = container.path();
    let of_file = |error: PageError| error.of_file(path);
    let pages = Pages::find(container, group.labels, group.rows).map_err(of_file)?;
    let dictionary = pages.dictionary.map(|page| page.read(container, group.labels, column, None));
    let dictionary = dictionary.transpose().map_err(of_file)?;
    for place in &pages.data {
        let page = place.read(container, group.labels, column, dictionary.as_ref()).map_err(of_file)?;
        for (row, value) in (place.first..).zip((0..page.len()).map(|row| page.value(row))) {
            each(row, value).map_err(|problem| DataError::layout(path, problem))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parquet::metadata::{Codec, Physical};

    /// The heads of a chunk's pages were read one by one, 64 KiB each: 248 KB of empty pages took eleven seconds.
    #[test]
    fn small_pages_are_not_read_again_and_again() {
        use std::cell::Cell;
        // A data page of one value, or of none, and nothing after its head.
        let page = |values: u8| [0x15, 0, 0x15, 0, 0x15, 0, 0x2C, 0x15, 2 * values, 0x15, 0, 0, 0];
        let check = |pages: &[[u8; 13]], rows: u32, expected: Result<usize, &str>| {
            let (file, total) = (pages.concat(), Cell::new(0));
            let read = |at: u64, length: usize, bytes: &mut Vec<u8>| {
                total.set(total.get() + length);
                bytes.clear();
                bytes.extend_from_slice(&file[at as usize..][..length]);
                Ok(())
            };
            let length = file.len() as u64;
            let chunk = Chunk { offset: 0, length, unpacked: length, codec: Codec::None };
            let found = Pages::find_by(read, chunk, rows).map(|pages| pages.data.len()).map_err(|error| match error {
                PageError::Damaged(fault) => fault,
                PageError::Read(_) => "not read",
            });
            assert_eq!(found, expected);
            assert!(total.get() <= 2 * file.len(), "{} bytes are read of {}", total.get(), file.len());
        };
        check(&vec![page(1); 20_000], 20_000, Ok(20_000));
        check(&[vec![page(0); 1000], vec![page(1)]].concat(), 1, Ok(1));
        check(&vec![page(0); 20_000], 1, Err("a column has more than 1000 pages without values"));
        check(&vec![page(1); 20_000], 20_001, Err("its metadata end early"));
    }

    /// It counted as damage, so a run that skips unreadable samples went on without them.
    #[test]
    fn lack_of_memory_is_no_damage() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        std::fs::write(&path, [0; 16]).unwrap();
        let container = Container::open(&path).unwrap();
        let chunk = Chunk { offset: 0, length: 16, unpacked: 16, codec: Codec::None };
        let column = Column {
            name: String::new(),
            field: None,
            physical: Physical::Bytes,
            is_text: false,
            levels: 1,
            is_list: false,
        };
        // A page of the newer form with 16 bytes of levels.
        let head = [0x15, 6, 0x15, 32, 0x15, 32, 0x5C, 0x15, 2, 0x35, 0, 0x15, 32, 0x15, 0, 0, 0];
        let mut head = Head::parse(&head).unwrap();
        let read = |head: Head| PageAt { first: 0, head, offset: 0 }.read(&container, chunk, &column, None);
        // More than any machine has.
        head.values = usize::MAX;
        let Err(PageError::Read(error)) = read(head) else { panic!("no error of memory") };
        assert!(!error.is_unreadable(), "{error}");
        let named = format!("cannot read {}: there is no memory for ", path.display());
        assert!(error.to_string().starts_with(&named), "{error}");
        head.kind = Kind::Other;
        assert!(matches!(read(head), Err(PageError::Damaged(_))));
    }
}
