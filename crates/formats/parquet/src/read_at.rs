//! What a file is read from.

use std::io::{self, ErrorKind};

use enmasse_system::files::reserve;

/// Bytes that can be read at any offset, by any number of threads at a time.
pub trait ReadAt {
    /// Why bytes cannot be read.
    type Error;

    /// The number of bytes.
    fn length(&self) -> u64;

    /// Makes `bytes` the `length` bytes from `offset` on.
    ///
    /// # Errors
    /// The bytes cannot be read, or the place lies beyond the end, which takes no memory.
    fn read_at(&self, offset: u64, length: usize, bytes: &mut Vec<u8>) -> Result<(), Self::Error>;
}

/// A file that lies in memory.
impl ReadAt for &[u8] {
    type Error = io::Error;

    fn length(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, length: usize, bytes: &mut Vec<u8>) -> io::Result<()> {
        let rest = usize::try_from(offset).ok().and_then(|offset| self.get(offset..));
        let read = rest.and_then(|rest| rest.get(..length)).ok_or(ErrorKind::UnexpectedEof)?;
        bytes.clear();
        reserve(bytes, length)?;
        bytes.extend_from_slice(read);
        Ok(())
    }
}
