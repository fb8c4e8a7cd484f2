//! A file from its beginning to its end, with leaps over what does not count: the headers and labels of a tar archive, and not its images.
//!
//! `BufReader` forgets its buffer at each seek, or asks the kernel where it is. This reader knows its place, so a leap costs nothing, and
//! members that lie close to each other share a read: an archive of a million small images opens with a tenth of the system calls.

use std::io::{self, Error, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

/// Bytes of a read: some headers and a label.
const BUFFER: usize = 8 << 10;

/// Reads a file by offsets, so it neither uses nor moves the file's own place.
pub struct FileReader<'a, F> {
    file: &'a F,
    position: u64,
    buffer: Box<[u8]>,
    /// The offset of the buffer's bytes in the file.
    offset: u64,
    /// How many of them are filled.
    filled: usize,
}

impl<'a, F: FileExt> FileReader<'a, F> {
    /// At the beginning of `file`.
    pub fn new(file: &'a F) -> Self {
        FileReader { file, position: 0, buffer: vec![0; BUFFER].into(), offset: 0, filled: 0 }
    }

    /// The bytes of the buffer from the position on.
    fn buffered(&self) -> &[u8] {
        let skipped = self.position.checked_sub(self.offset).and_then(|skipped| usize::try_from(skipped).ok());
        skipped.and_then(|skipped| self.buffer[..self.filled].get(skipped..)).unwrap_or_default()
    }
}

impl<F: FileExt> Read for FileReader<'_, F> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.buffered().is_empty() {
            self.filled = 0;
            self.filled = self.file.read_at(&mut self.buffer, self.position)?;
            self.offset = self.position;
        }
        let there = self.buffered();
        let count = there.len().min(bytes.len());
        bytes[..count].copy_from_slice(&there[..count]);
        self.position += count as u64;
        Ok(count)
    }
}

impl<F: FileExt> Seek for FileReader<'_, F> {
    /// Leaps from the beginning or from the position. The end is not known here.
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(distance) => self.position.checked_add_signed(distance),
            SeekFrom::End(_) => None,
        };
        self.position = position.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "a place that no file has"))?;
        Ok(self.position)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::Cursor;

    use proptest::prelude::*;

    use super::*;

    /// Counts reads, each of at most so many bytes.
    struct Counted {
        bytes: Vec<u8>,
        most: usize,
        reads: Cell<usize>,
    }

    impl Counted {
        fn new(length: usize, most: usize) -> Self {
            Counted { bytes: (0..length).map(|place| (place * 31 % 251) as u8).collect(), most, reads: Cell::new(0) }
        }
    }

    impl FileExt for Counted {
        fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
            self.reads.set(self.reads.get() + 1);
            let there = self.bytes.get(offset as usize..).unwrap_or_default();
            let count = there.len().min(bytes.len()).min(self.most);
            bytes[..count].copy_from_slice(&there[..count]);
            Ok(count)
        }

        fn write_at(&self, _: &[u8], _: u64) -> io::Result<usize> {
            unreachable!("nothing writes")
        }
    }

    proptest! {
        #[test]
        fn reads_and_leaps_are_those_of_a_cursor(
            length in 0usize..30_000,
            most in 1usize..10_000,
            steps in prop::collection::vec((0usize..12_000, -9_000i64..15_000), 1..20),
        ) {
            let file = Counted::new(length, most);
            let mut reader = FileReader::new(&file);
            let mut cursor = Cursor::new(&file.bytes);
            for (count, leap) in steps {
                let (mut found, mut expected) = (Vec::new(), Vec::new());
                reader.by_ref().take(count as u64).read_to_end(&mut found).unwrap();
                cursor.by_ref().take(count as u64).read_to_end(&mut expected).unwrap();
                prop_assert_eq!(found, expected);
                let [found, expected] = [reader.seek(SeekFrom::Current(leap)), cursor.seek(SeekFrom::Current(leap))];
                prop_assert_eq!(found.ok(), expected.ok());
            }
        }
    }

    #[test]
    fn what_lies_close_shares_a_read() {
        // A header of 512 bytes, a leap over an image, a header and a label, a leap over its padding.
        let reads = |image: usize| {
            let member = 512 + image + 512 + 512;
            let file = Counted::new(100 * member, usize::MAX);
            let mut reader = FileReader::new(&file);
            for _ in 0..100 {
                reader.read_exact(&mut [0; 512]).unwrap();
                reader.seek(SeekFrom::Current(image as i64)).unwrap();
                reader.read_exact(&mut [0; 512]).unwrap();
                reader.read_exact(&mut [0; 9]).unwrap();
                reader.seek(SeekFrom::Current(503)).unwrap();
            }
            file.reads.get()
        };
        assert!(reads(1024) <= 100 * 2560 / BUFFER + 1);
        // The label comes with the next header.
        assert_eq!(reads(100 << 10), 101);
    }
}
