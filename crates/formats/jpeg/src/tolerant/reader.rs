//! The bits of a scan as libjpeg reads them (`jdhuff.c`, `jdmarker.c`), also around markers that should not be there.

use crate::Error;
use crate::huffman::Huffman;
use crate::segments::{Segments, find_marker};

/// Bits that are loaded if there are as many.
const LOADED: u32 = 57;

pub(super) struct Reader<'a> {
    data: &'a [u8],
    /// The next byte to load.
    at: usize,
    /// Loaded bits: the lowest `left` ones.
    loaded: u64,
    left: u32,
    /// A marker that was met, and is not passed.
    marker: Option<u8>,
    /// Whether zeros have taken the place of bits that are missing before the marker.
    pub ran_out: bool,
}

impl<'a> Reader<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Reader { data, at: 0, loaded: 0, left: 0, marker: None, ran_out: false }
    }

    /// What follows: the marker that was met, or the bytes that are not loaded.
    pub fn rest(&self) -> Segments<'a> {
        // A marker is two bytes.
        let back = if self.marker.is_some() { 2 } else { 0 };
        Segments::from(&self.data[self.at - back..])
    }

    fn byte(&mut self) -> Result<u8, Error> {
        let byte = *self.data.get(self.at).ok_or(Error::Truncated)?;
        self.at += 1;
        Ok(byte)
    }

    /// Loads bits, at least `needed` ones. At a marker they are zeros. libjpeg always loads as many as it can, and so fails where the
    /// data end, though fewer may be needed.
    fn load(&mut self, needed: u32) -> Result<(), Error> {
        while self.marker.is_none() && self.left < LOADED {
            let mut byte = self.byte()?;
            if byte == 0xFF {
                while byte == 0xFF {
                    byte = self.byte()?;
                }
                if byte != 0 {
                    self.marker = Some(byte);
                    break;
                }
                byte = 0xFF;
            }
            self.loaded = self.loaded << 8 | u64::from(byte);
            self.left += 8;
        }
        if self.left < needed {
            self.ran_out = true;
            self.loaded <<= LOADED - self.left;
            self.left = LOADED;
        }
        Ok(())
    }

    /// Takes up to 16 bits as a number.
    pub fn take(&mut self, count: u32) -> Result<u32, Error> {
        if self.left < count {
            self.load(count)?;
        }
        self.left -= count;
        Ok((self.loaded >> self.left) as u32 & ((1 << count) - 1))
    }

    /// Takes a number of either sign (F.2.2.1).
    pub fn value(&mut self, size: u8) -> Result<i32, Error> {
        let size = u32::from(size);
        let bits = self.take(size)? as i32;
        let is_negative = size > 0 && bits >> (size - 1) == 0;
        Ok(if is_negative { bits + 1 - (1 << size) } else { bits })
    }

    /// Takes a code. Returns its symbol, or 0 for one that is unknown.
    pub fn symbol(&mut self, table: &Huffman) -> Result<u8, Error> {
        // libjpeg looks at eight bits at once if it can.
        if self.left < 8 {
            self.load(0)?;
        }
        let mut code = 0;
        for length in 1..=16 {
            code = code << 1 | self.take(1)?;
            if let Some(symbol) = table.symbol(code, length) {
                return Ok(symbol);
            }
        }
        self.take(1)?;
        Ok(0)
    }

    /// Goes on after the next restart marker, whose number should be `number`. libjpeg's `jpeg_resync_to_restart` decides what a
    /// wrong marker means.
    pub fn restart(&mut self, number: u8) -> Result<(), Error> {
        self.left = 0;
        loop {
            let marker = match self.marker.take() {
                Some(marker) => marker,
                None => {
                    let at = self.at + find_marker(&self.data[self.at..]).ok_or(Error::Truncated)?;
                    self.at = at + 2;
                    self.data[at + 1]
                }
            };
            match marker {
                // No marker of the standard.
                ..0xC0 => continue,
                0xD0..=0xD7 => match marker.wrapping_sub(number) % 8 {
                    // One of the two that come next: this one is missing.
                    1 | 2 => self.marker = Some(marker),
                    // One of the two before.
                    6 | 7 => continue,
                    _ => self.ran_out = false,
                },
                _ => self.marker = Some(marker),
            }
            return Ok(());
        }
    }
}
