//! A file as a sequence of markers with their contents, and entropy-coded data between them.

use crate::Error;

/// What is left of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segments<'a> {
    rest: &'a [u8],
}

impl<'a> Segments<'a> {
    /// All of a file.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Error> {
        match bytes {
            [0xFF, 0xD8, rest @ ..] => Ok(Segments { rest }),
            _ => Err(Error::Damaged("it does not begin like a JPEG")),
        }
    }

    /// The next marker and its content. Bytes before it that belong to no segment are skipped, as by libjpeg: cameras leave
    /// some, and so does a scan whose end is not needed.
    pub fn next(&mut self) -> Result<(u8, &'a [u8]), Error> {
        loop {
            let at = find_marker(self.rest).ok_or(Error::Truncated)?;
            let marker = self.rest[at + 1];
            let after = &self.rest[at + 2..];
            self.rest = after;
            match marker {
                // Markers without content, which mean nothing here.
                0x01 | 0xD0..=0xD8 => continue,
                0xD9 => return Err(Error::Damaged("it ends before its last scan")),
                _ => {}
            }
            let [high, low, ..] = after else { return Err(Error::Truncated) };
            let length = be16(*high, *low);
            if length < 2 {
                return Err(Error::Damaged("a segment has an invalid length"));
            }
            let content = after.get(2..length).ok_or(Error::Truncated)?;
            self.rest = &after[length..];
            return Ok((marker, content));
        }
    }

    /// The bytes after the segment that was read last.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Leaves out the first `count` of those bytes.
    pub fn skip(&mut self, count: usize) {
        self.rest = &self.rest[count..];
    }

    /// Whether the next marker ends the image.
    pub fn at_end(&self) -> Result<bool, Error> {
        let mut rest = self.rest;
        loop {
            let at = find_marker(rest).ok_or(Error::Truncated)?;
            match rest[at + 1] {
                0xD9 => return Ok(true),
                0x01 | 0xD0..=0xD8 => rest = &rest[at + 2..],
                _ => return Ok(false),
            }
        }
    }

    /// Whether an end marker follows anywhere. It is looked for from the end, where it usually is.
    pub fn has_end(&self) -> bool {
        self.rest.windows(2).rev().any(|pair| pair == [0xFF, 0xD9])
    }
}

/// The place of the next marker: a byte 0xFF before one that is neither 0 nor 0xFF.
pub(crate) fn find_marker(bytes: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + find_ff(&bytes[from..])?;
        match bytes.get(at + 1)? {
            0x00 => from = at + 2,
            0xFF => from = at + 1,
            _ => return Some(at),
        }
    }
}

/// The place of the first byte 0xFF, looked for eight bytes at a time.
fn find_ff(bytes: &[u8]) -> Option<usize> {
    let (words, _) = bytes.as_chunks::<8>();
    let clean = words.iter().take_while(|word| !has_ff(u64::from_le_bytes(**word))).count() * 8;
    bytes[clean..].iter().position(|&byte| byte == 0xFF).map(|at| clean + at)
}

/// Whether one of the eight bytes is 0xFF.
#[inline(always)]
pub(crate) fn has_ff(word: u64) -> bool {
    const LOW: u64 = 0x0101_0101_0101_0101;
    // A byte borrows only where its complement is 0.
    (!word).wrapping_sub(LOW) & word & (LOW << 7) != 0
}

pub(crate) fn be16(high: u8, low: u8) -> usize {
    usize::from(u16::from_be_bytes([high, low]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_found() {
        let check = |bytes: &[u8], expected: Option<usize>| {
            // At every place of a word.
            for before in 0..9 {
                let moved = [&vec![7; before], bytes].concat();
                assert_eq!(find_marker(&moved), expected.map(|at| at + before), "{bytes:?} after {before}");
            }
        };
        check(&[], None);
        check(&[0xFF], None);
        check(&[0xFE, 0xD8, 0x80, 0x7F], None);
        check(&[0xFF, 0xD9], Some(0));
        check(&[0xFF, 0x00, 0xFF, 0xD0], Some(2));
        check(&[0xFF, 0xFF, 0xFF, 0xDA, 1], Some(2));
        check(&[0xFF, 0x00, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0xFF, 0xC4], Some(11));
    }
}
