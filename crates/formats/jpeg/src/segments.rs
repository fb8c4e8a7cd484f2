//! A file as a sequence of markers with their contents, and entropy-coded data between them.

use crate::Error;

/// What is left of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segments<'a> {
    rest: &'a [u8],
}

impl<'a> From<&'a [u8]> for Segments<'a> {
    /// A file from any place on.
    fn from(rest: &'a [u8]) -> Self {
        Segments { rest }
    }
}

impl<'a> Segments<'a> {
    /// All of a file.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Error> {
        match bytes {
            [0xFF, 0xD8] | [0xFF, 0xD8, 0xFF, ..] => Ok(Segments { rest: &bytes[2..] }),
            _ => Err(Error::Damaged("it does not begin like a JPEG")),
        }
    }

    /// The next marker, or `None` at the end of the image. Bytes before it that belong to no segment are skipped, as by libjpeg:
    /// cameras leave some, and so does a scan whose end is not needed.
    pub fn marker(&mut self) -> Result<Option<u8>, Error> {
        loop {
            let at = find_marker(self.rest).ok_or(Error::Truncated)?;
            let marker = self.rest[at + 1];
            self.rest = &self.rest[at + 2..];
            match marker {
                0xD9 => return Ok(None),
                // Markers without content, which mean nothing here.
                0x01 | 0xD0..=0xD7 => continue,
                0x02..=0xBF | 0xC8 | 0xD8 | 0xDE | 0xDF | 0xF0..=0xFD => {
                    return Err(Error::Damaged("it has an unknown marker"));
                }
                _ => return Ok(Some(marker)),
            }
        }
    }

    /// The content of the marker that was read last.
    pub fn content(&mut self) -> Result<&'a [u8], Error> {
        let [high, low, ..] = *self.rest else { return Err(Error::Truncated) };
        let length = be16(high, low);
        if length < 2 {
            return Err(Error::Damaged("a segment has an invalid length"));
        }
        let (segment, rest) = self.rest.split_at_checked(length).ok_or(Error::Truncated)?;
        self.rest = rest;
        Ok(&segment[2..])
    }

    /// The bytes after the segment that was read last.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Leaves out the first `count` of them.
    pub fn skip(&mut self, count: usize) {
        self.rest = &self.rest[count..];
    }

    /// Whether an end marker follows anywhere. It is looked for from the end, where it usually is.
    pub fn has_end(&self) -> bool {
        self.rest.windows(2).rev().any(|pair| pair == [0xFF, 0xD9])
    }
}

/// Whether a marker begins a frame of any kind.
pub(crate) fn is_frame(marker: u8) -> bool {
    matches!(marker, 0xC0..=0xC3 | 0xC5..=0xC7 | 0xC9..=0xCB | 0xCD..=0xCF)
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
