//! A Parquet file as it is opened: its columns, its groups of rows, and all values of a column in one of them.

use crate::metadata::{self, Chunk, Column, RowGroup};
use crate::page::EntryKind;
use crate::{Pages, ParquetError, ReadAt};

/// The first and the last bytes of a file.
pub(crate) const MAGIC: &[u8; 4] = b"PAR1";
/// Limit of the metadata's bytes: a group of rows takes a few hundred.
const MAX_METADATA: u64 = 256 << 20;

/// A file and what it says of itself.
#[derive(Debug)]
pub struct ParquetFile<R> {
    /// What it is read from.
    pub source: R,
    /// Its columns, in the order of their chunks.
    pub columns: Vec<Column>,
    metadata: Vec<u8>,
}

impl<R: ReadAt> ParquetFile<R> {
    /// Reads what the file says of itself.
    ///
    /// # Errors
    /// [`ParquetError::Read`] of the source, or [`ParquetError::Damaged`] if it is no Parquet file, is encrypted, lacks
    /// its end, or has metadata that are damaged.
    pub fn open(source: R) -> Result<Self, ParquetError<R::Error>> {
        let length = source.length();
        if length < 12 {
            return Err("it is no Parquet file: it is too short".into());
        }
        let mut bytes = Vec::new();
        let mut read = |offset: u64, length: usize| {
            source.read_at(offset, length, &mut bytes).map(|()| std::mem::take(&mut bytes)).map_err(ParquetError::Read)
        };
        let begin = read(0, 4)?;
        let end = read(length - 8, 8)?;
        let (size, mark) = end.split_at(4);
        match (begin.as_slice(), mark) {
            (begin, mark) if begin == MAGIC && mark == MAGIC => {}
            (b"PARE", _) | (_, b"PARE") => return Err("it is encrypted".into()),
            (begin, _) if begin == MAGIC => return Err("it lacks its end: truncated, or still being written".into()),
            _ => return Err("it is no Parquet file".into()),
        }
        let size = u64::from(size.first_chunk().map_or(0, |size| u32::from_le_bytes(*size)));
        if size > MAX_METADATA || size > length - 12 {
            return Err("its metadata are said to have more bytes than there are".into());
        }
        let metadata = read(length - 8 - size, size as usize)?;
        let columns = metadata::columns(&metadata)?;
        Ok(ParquetFile { source, columns, metadata })
    }

    /// The groups of rows, each with its chunks of some of the [`columns`](Self::columns).
    ///
    /// # Errors
    /// [`ParquetError::Damaged`] if the metadata of the groups are damaged, or a chunk is compressed by what is not
    /// read.
    pub fn row_groups<const N: usize>(&self, columns: [usize; N]) -> Result<Vec<RowGroup<N>>, ParquetError<R::Error>> {
        let length = self.source.length() - 8 - self.metadata.len() as u64;
        Ok(metadata::row_groups(&self.metadata, length, columns)?)
    }

    /// The value that a writer has stored under a key, such as `pandas` or `huggingface`; of several the last one.
    pub fn key_value(&self, key: &str) -> Option<&[u8]> {
        metadata::key_value(&self.metadata, key.as_bytes())
    }

    /// Calls `each` with the value of each row of a group, in order: the number of the row in the group, and the bytes of a
    /// text or a number, or `None` if it is null. `chunk` is that of the group's column `column`.
    ///
    /// # Errors
    /// [`ParquetError::Read`] of the source, [`ParquetError::Memory`] if there is none for a page, or
    /// [`ParquetError::Damaged`] if a page is damaged, or with the text of `each`, which ends the call.
    pub fn each_value(
        &self,
        column: usize,
        rows: u32,
        chunk: Chunk,
        mut each: impl FnMut(u32, Option<&[u8]>) -> Result<(), String>,
    ) -> Result<(), ParquetError<R::Error>> {
        let column = &self.columns[column];
        let pages = Pages::find(&self.source, chunk, rows)?;
        let dictionary = pages.dictionary.map(|page| page.read(&self.source, chunk, column, None)).transpose()?;
        for location in &pages.data {
            let page = location.read(&self.source, chunk, column, dictionary.as_ref())?;
            for (row, value) in (location.first..).zip((0..page.len()).map(|row| page.value(row))) {
                each(row, value)?;
            }
        }
        Ok(())
    }

    /// Calls `each` with what the rows of a group have, in order, for a column of lists: that a list begins, and each of its values.
    ///
    /// # Errors
    /// Those of [`each_value`](Self::each_value). Or the lists are in lists, or are not as many as the rows.
    pub fn each_list(
        &self,
        column: usize,
        rows: u32,
        chunk: Chunk,
        mut each: impl FnMut(ListItem) -> Result<(), String>,
    ) -> Result<(), ParquetError<R::Error>> {
        const MISCOUNTED: &str = "its column has another number of lists than rows";
        let column = &self.columns[column];
        if column.list.is_none_or(|list| list.depth > 1) {
            return Err("its lists are in lists".into());
        }
        let pages = Pages::of_lists(&self.source, chunk)?;
        let dictionary = pages.dictionary.map(|page| page.read(&self.source, chunk, column, None)).transpose()?;
        // A list may go on in the next page.
        let mut begun = 0;
        for location in &pages.data {
            let (page, entries) = location.read_lists(&self.source, chunk, column, dictionary.as_ref())?;
            for (place, entry) in entries.iter().enumerate() {
                if entry.begins {
                    begun += 1;
                    each(ListItem::Begin { row: begun - 1, is_null: entry.kind == EntryKind::NullList })?;
                }
                if !(1..=rows).contains(&begun) {
                    return Err(MISCOUNTED.into());
                }
                if entry.kind == EntryKind::Value {
                    each(ListItem::Value(page.value(place)))?;
                }
            }
        }
        if begun == rows { Ok(()) } else { Err(MISCOUNTED.into()) }
    }
}

/// What [`ParquetFile::each_list`] finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListItem<'a> {
    /// The list of a row begins.
    Begin {
        /// The number of the row in its group.
        row: u32,
        /// Whether there is no list, which is not the same as an empty one.
        is_null: bool,
    },
    /// A value of this list: the bytes of a text or a number, or `None` if it is null.
    Value(Option<&'a [u8]>),
}
