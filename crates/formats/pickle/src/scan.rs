//! Reads the arguments of opcodes from bytes; every length is checked before anything is allocated.

use crate::PickleError;

/// The rest of a pickle, and its position.
pub(crate) struct Scanner<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Scanner<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Scanner { bytes, position: 0 }
    }

    /// Number of bytes read.
    pub fn position(&self) -> usize {
        self.position
    }

    pub fn take(&mut self, len: usize) -> Result<&'a [u8], PickleError> {
        let end = self.position.checked_add(len).ok_or(PickleError::CutShort)?;
        let taken = self.bytes.get(self.position..end).ok_or(PickleError::CutShort)?;
        self.position = end;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        self.take(N)?.try_into().map_err(|_| PickleError::CutShort)
    }

    pub fn byte(&mut self) -> Result<u8, PickleError> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// A length of `N` little-endian bytes. A length beyond any memory is treated like one beyond the end.
    pub fn len<const N: usize>(&mut self) -> Result<usize, PickleError> {
        let mut wide = [0; 8];
        wide[..N].copy_from_slice(&self.array::<N>()?);
        usize::try_from(u64::from_le_bytes(wide)).map_err(|_| PickleError::CutShort)
    }

    /// Bytes with a length in front.
    pub fn counted<const N: usize>(&mut self) -> Result<&'a [u8], PickleError> {
        let len = self.len::<N>()?;
        self.take(len)
    }

    /// The bytes up to the next line feed, which is consumed.
    pub fn line(&mut self) -> Result<&'a [u8], PickleError> {
        let rest = &self.bytes[self.position..];
        let len = rest.iter().position(|&byte| byte == b'\n').ok_or(PickleError::CutShort)?;
        let line = self.take(len)?;
        self.position += 1;
        Ok(line)
    }
}

/// The text between the quotes of a Python 2 `repr`.
pub(crate) fn unquote(line: &[u8]) -> Option<Vec<u8>> {
    let inner = match line {
        [b'\'', inner @ .., b'\''] | [b'"', inner @ .., b'"'] => inner,
        _ => return None,
    };
    let mut text = Vec::with_capacity(inner.len());
    let mut rest = inner.iter().copied();
    while let Some(byte) = rest.next() {
        text.push(match byte {
            b'\\' => match rest.next()? {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'x' => hexadecimal(rest.by_ref().take(2), 2)? as u8,
                quoted @ (b'\\' | b'\'' | b'"') => quoted,
                _ => return None,
            },
            other => other,
        });
    }
    Some(text)
}

/// Python's `raw-unicode-escape`: Latin-1, with `\uXXXX` or `\UXXXXXXXX` for other characters.
pub(crate) fn unescape(line: &[u8]) -> Option<String> {
    let mut text = String::with_capacity(line.len());
    let mut rest = line.iter().copied().peekable();
    while let Some(byte) = rest.next() {
        let digits = match (byte, rest.peek()) {
            (b'\\', Some(b'u')) => 4,
            (b'\\', Some(b'U')) => 8,
            _ => {
                text.push(char::from(byte));
                continue;
            }
        };
        rest.next();
        text.push(char::from_u32(hexadecimal(rest.by_ref().take(digits), digits)?)?);
    }
    Some(text)
}

fn hexadecimal(digits: impl Iterator<Item = u8>, expected: usize) -> Option<u32> {
    let mut value = 0;
    let mut count = 0;
    for digit in digits {
        value = value << 4 | char::from(digit).to_digit(16)?;
        count += 1;
    }
    (count == expected).then_some(value)
}

/// Little-endian two's complement of up to eight bytes.
pub(crate) fn int(bytes: &[u8]) -> Option<i64> {
    let negative = bytes.last().is_some_and(|&top| top >= 0x80);
    let mut wide = [if negative { 0xFF } else { 0 }; 8];
    wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(i64::from_le_bytes(wide))
}
