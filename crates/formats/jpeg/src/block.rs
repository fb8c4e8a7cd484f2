//! The blocks of a sequential scan (ITU-T T.81, F.2.2).

use crate::Error;
use crate::bits::Bits;
use crate::huffman::{Huffman, Skip};
use crate::symbol::Entry;
use crate::transform::Block;

/// A number for each coefficient in zigzag order. A run in damaged data may lead up to 15 places beyond the last one, where the
/// number is that of the last one.
pub(crate) type Zigzag<T> = [T; 128];

/// Makes one of 64 numbers.
pub(crate) const fn zigzag<T: Copy>(numbers: &[T; 64]) -> Zigzag<T> {
    let mut all = [numbers[63]; 128];
    let mut at = 0;
    while at < 64 {
        all[at] = numbers[at];
        at += 1;
    }
    all
}

/// The tables of a component.
pub(crate) struct Coding<'a> {
    pub dc: &'a Huffman,
    pub ac: &'a Huffman,
    /// Factors of the coefficients. Products keep their lowest 16 bits, as in libjpeg-turbo's vectors.
    pub quantization: &'a Zigzag<i16>,
}

impl Coding<'_> {
    /// Decodes a block into one of zeros. Returns whether any coefficient but the first was written.
    #[inline(always)]
    pub fn decode(&self, bits: &mut Bits, previous: &mut i32, into: &mut Block) -> Result<bool, Error> {
        const PLACES: Zigzag<u8> = zigzag(&crate::transform::PLACES);
        let mut local = *bits;
        let dc = difference(self.dc, &mut local, previous)?;
        into[0] = dc.wrapping_mul(self.quantization[0]);
        if overflows(into[0]) {
            return Err(OVERFLOW);
        }
        let last = self.walk(&mut local, 1, |k, value| {
            // The end of a block writes a zero to the place of the last coefficient, which has not been reached.
            into[usize::from(PLACES[k & 127] & 63)] = (value as i16).wrapping_mul(self.quantization[k & 127]);
        })?;
        *bits = local;
        Ok(last > 1)
    }

    /// Leaves out a block, and returns its first coefficient.
    #[inline(always)]
    pub fn skip(&self, bits: &mut Bits, previous: &mut i32) -> Result<i16, Error> {
        let mut local = *bits;
        let dc = difference(self.dc, &mut local, previous)?;
        let step = |bits: &mut Bits, at: &mut usize| {
            let skip = self.ac.skip(bits);
            bits.take(skip.total());
            *at += skip.count();
            skip
        };
        let mut at = 1;
        let skip = loop {
            local.refill();
            let skip = step(&mut local, &mut at);
            if skip.total() == 0 || at > Skip::SAFE {
                break skip;
            }
            let skip = step(&mut local, &mut at);
            if skip.total() == 0 || at > Skip::SAFE {
                break skip;
            }
        };
        if at > 64 && !skip.ends() {
            return Err(OVERRUN);
        }
        if at < 64 {
            self.walk(&mut local, at, |_, _| {})?;
        }
        *bits = local;
        let first = dc.wrapping_mul(self.quantization[0]);
        if overflows(first) { Err(OVERFLOW) } else { Ok(first) }
    }

    /// Calls `write` with the place in zigzag order and the value of each coefficient from place `k` on, and once more at the end
    /// of the block. Returns the place after the last of them.
    #[inline(always)]
    fn walk(&self, bits: &mut Bits, mut k: usize, mut write: impl FnMut(usize, i32)) -> Result<usize, Error> {
        let mut step = |bits: &mut Bits| {
            let entry = self.ac.look(bits);
            let at = k + entry.run();
            write(at, bits.value(entry));
            k = at + 1;
            (at, entry)
        };
        let (at, entry) = loop {
            bits.refill();
            let (at, entry) = step(bits);
            if at >= 63 {
                break (at, entry);
            }
            let (at, entry) = step(bits);
            if at >= 63 {
                break (at, entry);
            }
        };
        entry.check()?;
        match entry.run() {
            Entry::END => Ok(at - Entry::END),
            _ if at > 63 => Err(OVERRUN),
            _ => Ok(64),
        }
    }
}

const OVERRUN: Error = Error::Damaged("a block has more than 64 coefficients");

pub(crate) const OVERFLOW: Error = Error::Damaged("a coefficient is too large");

/// Whether a first coefficient, times its factor, is that of damaged data: no other needs more than 12 bits.
#[inline(always)]
pub(crate) fn overflows(first: i16) -> bool {
    first << 3 >> 3 != first
}

/// Decodes a block's first coefficient, which is stored as the difference from that of the block before.
#[inline(always)]
pub(crate) fn difference(table: &Huffman, bits: &mut Bits, previous: &mut i32) -> Result<i16, Error> {
    bits.refill();
    let entry = table.look(bits);
    entry.check()?;
    *previous = previous.wrapping_add(bits.value(entry));
    Ok(*previous as i16)
}
