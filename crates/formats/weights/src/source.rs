//! A file that is read at the places given by its own directory, within limits set by its length.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use enmasse_system::files::{open_regular, require, reserve};

use crate::element::{ByteOrder, ElementType};
use crate::{Format, WeightsError};

/// Far above the size of any model here. A larger file is something else, or an attack on memory.
const FILE_LIMIT: u64 = 16 << 30;
/// Size of a single read, in bytes; every element size divides it.
const PIECE: usize = 1 << 14;
const MAX_REASON: usize = 500;

/// An open file of known length.
pub(crate) struct Source {
    path: PathBuf,
    file: File,
    len: u64,
}

impl Source {
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let refused = |source| WeightsError::Io { path: path.to_owned(), source };
        let content = |reason| WeightsError::Content { path: path.to_owned(), reason };
        let file = open_regular(path).map_err(|error| match error.kind() {
            ErrorKind::InvalidData => content(error.to_string()),
            _ => refused(error),
        })?;
        // The length of the opened file: a running trainer may have replaced the path's file since.
        let len = file.metadata().map_err(refused)?.len();
        if len > FILE_LIMIT {
            return Err(content(format!("has {len} bytes; more than {FILE_LIMIT} are not read")));
        }
        Ok(Source { path: path.to_owned(), file, len })
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    /// An error about the file's contents, in one line whatever names the file contains.
    pub fn refuse(&self, reason: impl AsRef<str>) -> WeightsError {
        let reason = reason.as_ref().chars().map(|letter| if letter.is_control() { '?' } else { letter });
        WeightsError::Content { path: self.path.clone(), reason: reason.take(MAX_REASON).collect() }
    }

    /// An error about malformed bytes.
    pub fn damaged(&self, problem: &str) -> WeightsError {
        self.refuse(format!("is damaged: {problem}; fetch or save it again"))
    }

    /// The format, by the first bytes.
    pub fn format(&self) -> Result<Format, WeightsError> {
        let start = self.bytes(0, self.len.min(512) as usize)?;
        let begins = |at: usize, with: &[u8]| start.get(at..).is_some_and(|rest| rest.starts_with(with));
        if begins(0, b"PK\x03\x04") {
            Ok(Format::Zip)
        } else if begins(257, b"ustar") {
            Err(self.refuse(
                "is a tar file, as torch.save wrote before PyTorch 0.2; \
                 load it and save it again with PyTorch 0.4 or later",
            ))
        } else if begins(8, b"{") {
            Ok(Format::Safetensors)
        } else if begins(0, b"\x80") {
            Ok(Format::Legacy)
        } else {
            Err(self.refuse("is not a safetensors file nor one of PyTorch, or it is truncated"))
        }
    }

    /// Bytes at an offset. The caller has checked their number against a limit; reading beyond the file is an error.
    pub fn bytes(&self, offset: u64, len: usize) -> Result<Vec<u8>, WeightsError> {
        self.within(offset, len as u64)?;
        let mut bytes = Vec::new();
        reserve(&mut bytes, len).map_err(|error| self.io(error))?;
        bytes.resize(len, 0);
        self.fill(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Fails unless there is memory for `bytes` bytes, which a parser is about to take without asking.
    pub fn require(&self, bytes: u64) -> Result<(), WeightsError> {
        require(usize::try_from(bytes).unwrap_or(usize::MAX)).map_err(|error| self.io(error))
    }

    /// Reserves memory for the values of a tensor.
    pub fn reserve(&self, values: &mut Vec<f32>, count: usize) -> Result<(), WeightsError> {
        reserve(values, count).map_err(|error| self.io(error))
    }

    fn io(&self, source: io::Error) -> WeightsError {
        WeightsError::Io { path: self.path.clone(), source }
    }

    /// A fixed number of bytes at an offset.
    pub fn array<const N: usize>(&self, offset: u64) -> Result<[u8; N], WeightsError> {
        self.within(offset, N as u64)?;
        let mut bytes = [0; N];
        self.fill(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Appends `count` elements at an offset to `values`.
    pub fn decode(
        &self,
        offset: u64,
        element: ElementType,
        order: ByteOrder,
        count: usize,
        values: &mut Vec<f32>,
    ) -> Result<(), WeightsError> {
        let len = (count as u64).saturating_mul(element.size() as u64);
        self.within(offset, len)?;
        self.reserve(values, count)?;
        self.scan(offset, len, |piece| element.decode(order, piece, values))
    }

    /// Passes `len` bytes at an offset to `seen`, in pieces that no element crosses.
    pub fn scan(&self, offset: u64, len: u64, mut seen: impl FnMut(&mut [u8])) -> Result<(), WeightsError> {
        self.within(offset, len)?;
        let mut buffer = [0; PIECE];
        let mut done = 0;
        while done < len {
            let piece = &mut buffer[..(len - done).min(PIECE as u64) as usize];
            self.fill(offset + done, piece)?;
            seen(piece);
            done += piece.len() as u64;
        }
        Ok(())
    }

    fn within(&self, offset: u64, len: u64) -> Result<(), WeightsError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(self.damaged("it refers to data beyond its end")),
        }
    }

    fn fill(&self, offset: u64, buffer: &mut [u8]) -> Result<(), WeightsError> {
        self.file.read_exact_at(buffer, offset).map_err(|source| match source.kind() {
            ErrorKind::UnexpectedEof => self.refuse("was cut short while it was read"),
            _ => self.io(source),
        })
    }
}
