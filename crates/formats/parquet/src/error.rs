//! Why a file, or a page of it, cannot be read.

use std::io;

use crate::thrift::Fault;

/// An error of a Parquet file, which is read from a source whose errors are `E`.
#[derive(Debug, thiserror::Error)]
pub enum ParquetError<E> {
    /// The file is at fault; a sentence about it.
    #[error("{0}")]
    Damaged(String),
    /// There is no memory for a page here and now.
    #[error("{0}")]
    Memory(io::Error),
    /// The source cannot be read.
    #[error(transparent)]
    Read(E),
}

impl<E> From<Fault> for ParquetError<E> {
    fn from(fault: Fault) -> Self {
        ParquetError::Damaged(fault.to_owned())
    }
}

impl<E> From<String> for ParquetError<E> {
    fn from(problem: String) -> Self {
        ParquetError::Damaged(problem)
    }
}
