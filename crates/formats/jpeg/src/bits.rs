//! The bits of entropy-coded data (ITU-T T.81, F.2.2.5), 64 at a time.

use crate::Error;
use crate::segments::{find_marker, has_ff};
use crate::symbol::Entry;

/// Reads bits from the highest on. At a marker, or at the end of the data, zeros follow without end; [`Bits::check`] tells
/// whether one has been taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bits<'a> {
    data: &'a [u8],
    /// The next byte to load.
    at: usize,
    /// Loaded bits, the next one on top. Below the `count` ones that count there may be more of the data's.
    loaded: u64,
    count: u32,
    /// How many of them follow the end.
    beyond: u32,
}

impl<'a> Bits<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Bits { data, at: 0, loaded: 0, count: 0, beyond: 0 }
    }

    /// Loads as many whole bytes as fit. At least 56 bits are loaded then: two codes of up to 10 bits with their values.
    #[inline(always)]
    pub fn refill(&mut self) {
        if let Some(bytes) = self.data[self.at..].first_chunk::<8>() {
            let word = u64::from_be_bytes(*bytes);
            if !has_ff(word) {
                // Bytes of which a part is loaded come again, at the same place.
                self.loaded |= word >> self.count;
                self.at += (63 - self.count as usize) >> 3;
                self.count |= 56;
                return;
            }
        }
        *self = self.load_bytes();
    }

    /// The same byte by byte. After a byte 0xFF of data the file has a zero; anything else is a marker, where the data end.
    /// By value, so that a caller's bits stay in registers.
    #[cold]
    #[inline(never)]
    fn load_bytes(mut self) -> Self {
        // Those below may be of a byte that is loaded again.
        self.loaded &= !(u64::MAX >> self.count);
        while self.count < 56 {
            let byte = match self.data[self.at..] {
                [0xFF, 0x00, ..] => {
                    self.at += 2;
                    0xFF
                }
                [0xFF, ..] | [] => {
                    self.beyond += 8;
                    0
                }
                [byte, ..] => {
                    self.at += 1;
                    byte
                }
            };
            self.loaded |= u64::from(byte) << (56 - self.count);
            self.count += 8;
        }
        self
    }

    /// The next `count` bits, from 1 to 32, as a number.
    #[inline(always)]
    pub fn peek(&self, count: u32) -> u32 {
        (self.loaded >> (64 - count)) as u32
    }

    /// Leaves out bits that have been looked at.
    #[inline(always)]
    pub fn take(&mut self, count: u32) {
        self.loaded = self.loaded.wrapping_shl(count);
        self.count -= count;
    }

    /// Takes `count` bits, from 0 to 16, as a number.
    #[inline(always)]
    pub fn get(&mut self, count: u32) -> u32 {
        // In two steps, since a shift by 64 does not exist.
        let bits = self.loaded >> 1 >> (63 - count);
        self.take(count);
        bits as u32
    }

    /// Takes a code and the value after it, whose bits stand for a number of either sign (F.2.2.1).
    #[inline(always)]
    pub fn value(&mut self, entry: Entry) -> i32 {
        let from = self.loaded << entry.length();
        let size = entry.size();
        self.take(entry.total());
        let bits = (from >> 1 >> (63 - size)) as i32;
        // Numbers below 0 begin with a zero.
        let is_negative = !((from as i64) >> 63) as i32;
        bits + (is_negative & (1 - (1 << size)))
    }

    /// Fails if bits beyond the end have been taken.
    pub fn check(&self) -> Result<(), Error> {
        if self.count < self.beyond { Err(Error::Truncated) } else { Ok(()) }
    }

    /// Goes on after the next restart marker, whose number must be `number` modulo 8. What is left before it is skipped.
    pub fn restart(&mut self, number: usize) -> Result<(), Error> {
        self.check()?;
        let at = self.at + find_marker(&self.data[self.at..]).ok_or(Error::Truncated)?;
        match self.data[at + 1] {
            0xD9 => return Err(Error::Truncated),
            marker if marker == 0xD0 | (number % 8) as u8 => {}
            _ => return Err(Error::Damaged("a restart marker is missing")),
        }
        *self = Bits { data: self.data, at: at + 2, loaded: 0, count: 0, beyond: 0 };
        Ok(())
    }

    /// Number of bytes that have been loaded. The next marker does not begin before their end.
    pub fn position(&self) -> usize {
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compared with the bits one by one.
    #[test]
    fn bits_are_read_in_order() {
        let data: Vec<u8> = (0..600u32)
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 23) as u8 | if at % 7 == 0 { 0xFF } else { 0 })
            .collect();
        let mut stuffed = Vec::new();
        for &byte in &data {
            stuffed.push(byte);
            stuffed.extend((byte == 0xFF).then_some(0));
        }
        stuffed.extend([0xFF, 0xD3, 0x12, 0x34]);
        let mut bits = Bits::new(&stuffed);
        let mut at = 0;
        let bit = |at: usize| data.get(at / 8).map_or(0, |byte| u32::from(byte >> (7 - at % 8) & 1));
        for step in 0.. {
            let count = (step * 7 % 17) as u32;
            if at + count as usize > data.len() * 8 {
                break;
            }
            bits.refill();
            let expected = (at..at + count as usize).fold(0, |number, at| number << 1 | bit(at));
            assert_eq!(bits.get(count), expected, "{count} bits at {at}");
            at += count as usize;
            bits.check().unwrap();
        }
        bits.restart(3).unwrap();
        bits.refill();
        assert_eq!(bits.get(16), 0x1234);
        bits.check().unwrap();
        bits.refill();
        assert_eq!(bits.get(1), 0);
        assert_eq!(bits.check(), Err(Error::Truncated));
    }
}
