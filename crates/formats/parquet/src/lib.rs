//! Columns of Parquet files, page by page, from bytes that nobody trusts.
//!
//! [`ParquetFile::open`] reads what a file says of itself at its end: its columns and its groups of rows. The values of a
//! column in a group lie in pages. [`Pages`] finds these by their heads, and a [`Page`] has the values of its rows. A
//! source of bytes is anything that can [`ReadAt`] an offset, from any number of threads. No number of a file counts
//! before it has been compared with the file's length, and no page becomes more than a thousand times as large.
//! [`TableWriter`] writes a table of texts, numbers and lists of numbers.
//!
//! ```
//! use enmasse_parquet::{ParquetError, ParquetFile};
//!
//! // A file of one column, `n`, and one row, 7.
//! # let metadata = [
//! #     &[0x15, 2, 0x19, 0x2C][..], // version 1, two elements of a schema
//! #     &[0x48, 4, b'r', b'o', b'o', b't', 0x15, 2, 0], // the root, with one child
//! #     &[0x15, 2, 0x25, 0, 0x18, 1, b'n', 0], // a required number of 4 bytes
//! #     &[0x16, 2, 0x19, 0x1C], // one row, one group of rows
//! #     &[0x19, 0x1C, 0x26, 8, 0x1C], // with one chunk, whose metadata follow
//! #     &[0x15, 2, 0x19, 0x15, 0, 0x19, 0x18, 1, b'n', 0x15, 0, 0x16, 2, 0x16, 34, 0x16, 34, 0x26, 8, 0, 0],
//! #     &[0x16, 34, 0x16, 2, 0, 0],
//! # ]
//! # .concat();
//! # let page = [0x15, 0, 0x15, 8, 0x15, 8, 0x2C, 0x15, 2, 0x15, 0, 0, 0, 7, 0, 0, 0];
//! # let length = (metadata.len() as u32).to_le_bytes();
//! # let bytes = [b"PAR1", &page[..], &metadata[..], &length[..], b"PAR1"].concat();
//! let file = ParquetFile::open(bytes.as_slice())?;
//! assert_eq!(file.columns[0].name, "n");
//! let mut values = Vec::new();
//! for group in file.row_groups([0])? {
//!     file.each_value(0, group.rows, group.chunks[0], |_, value| {
//!         values.extend(value.map(<[u8]>::to_vec));
//!         Ok(())
//!     })?;
//! }
//! assert_eq!(values, [7u32.to_le_bytes()]);
//! # Ok::<(), ParquetError<std::io::Error>>(())
//! ```

mod cache;
mod encoding;
mod error;
mod file;
mod metadata;
mod page;
mod pages;
mod read_at;
mod thrift;
mod write;

pub use cache::PageCache;
pub use error::ParquetError;
pub use file::{ListItem, ParquetFile};
pub use metadata::{Chunk, Codec, Column, List, PhysicalType, RowGroup};
pub use page::Page;
pub use pages::{PageLocation, Pages};
pub use read_at::ReadAt;
pub use write::{Cell, TableColumn, TableWriter};
