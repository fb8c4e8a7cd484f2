//! Huffman codes as lookup tables (ITU-T T.81, annexes C and F.2.2).
//!
//! A table is indexed by the next [`LOOKUP`] bits, which nearly always hold a whole code. The value after the code is read
//! without another look at the table and without a branch.

use crate::Error;
use crate::bits::Bits;
use crate::symbol::{Entry, Kind};
use crate::tables::Codes;

/// Bits that index a table: 4 KiB each, so that the four of a scan stay in the first cache.
const LOOKUP: u32 = 10;

/// As many symbols as the next bits hold, for blocks that are left out.
///
/// From the lowest bit on: 6 bits with the number of all bits to take, which is 0 if nothing is known; one that says whether
/// the block ends; and the number of coefficients, or more if it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Skip(u16);

impl Skip {
    /// From up to this place on, all symbols but the last one stay in the block.
    pub const SAFE: usize = 48;

    /// Bits of the symbols and their values.
    #[inline(always)]
    pub fn total(self) -> u32 {
        u32::from(self.0 & 63)
    }

    /// Whether the last symbol ends the block.
    #[inline(always)]
    pub fn ends(self) -> bool {
        self.0 & 64 != 0
    }

    /// Number of coefficients.
    #[inline(always)]
    pub fn count(self) -> usize {
        usize::from(self.0 >> 7)
    }
}

/// A table for decoding.
#[derive(Clone, Debug)]
pub(crate) struct Huffman {
    entries: Box<[Entry; 1 << LOOKUP]>,
    /// Zero until [`prepare_skips`](Self::prepare_skips).
    skips: Box<[Skip; 1 << LOOKUP]>,
    has_skips: bool,
    /// For each length: the first 16 bits that are beyond its codes.
    ends: [u32; 17],
    /// For each length: the place of its first symbol, less its first code.
    starts: [i32; 17],
    counts: [u8; 16],
    symbols: Vec<u8>,
    kind: Kind,
}

impl Default for Huffman {
    fn default() -> Self {
        Huffman {
            entries: Box::new([Entry::UNKNOWN; 1 << LOOKUP]),
            skips: Box::new([Skip::default(); 1 << LOOKUP]),
            has_skips: false,
            ends: [0; 17],
            starts: [0; 17],
            counts: [0; 16],
            symbols: Vec::new(),
            kind: Kind::Dc,
        }
    }
}

impl Huffman {
    /// Makes the table of `codes`. Most files have the same ones as the file before, which costs a comparison.
    pub fn set(&mut self, codes: &Codes, kind: Kind) -> Result<(), Error> {
        if self.counts == codes.counts && self.symbols == codes.symbols && self.kind == kind {
            return Ok(());
        }
        check(codes, kind)?;
        self.entries.fill(Entry::UNKNOWN);
        self.skips.fill(Skip::default());
        self.has_skips = false;
        let (mut code, mut place) = (0u32, 0usize);
        for length in 1..=16u32 {
            let count = usize::from(codes.counts[length as usize - 1]);
            self.starts[length as usize] = place as i32 - code as i32;
            for &symbol in &codes.symbols[place..place + count] {
                if length <= LOOKUP {
                    let free = LOOKUP - length;
                    let entries = &mut self.entries[(code << free) as usize..][..1 << free];
                    entries.fill(Entry::new(symbol, length, kind));
                }
                code += 1;
            }
            place += count;
            self.ends[length as usize] = code << (16 - length);
            code <<= 1;
        }
        (self.counts, self.kind) = (codes.counts, kind);
        self.symbols.clear();
        self.symbols.extend_from_slice(codes.symbols);
        Ok(())
    }

    /// Makes the table of [`skip`](Self::skip), which takes as long as leaving out some hundred blocks.
    pub fn prepare_skips(&mut self) {
        if std::mem::replace(&mut self.has_skips, true) {
            return;
        }
        for (next, skip) in self.skips.iter_mut().enumerate() {
            let (mut total, mut count, mut ends) = (0, 0, false);
            // Bits after the index count as zeros, so a code must end within it. Its value is left out unseen.
            while total < LOOKUP && count < Entry::END - Skip::SAFE && !ends {
                let entry = self.entries[next << total & ((1 << LOOKUP) - 1)];
                if entry.total() == 0 || total + entry.length() > LOOKUP {
                    break;
                }
                total += entry.total();
                count += entry.run() + 1;
                ends = entry.run() == Entry::END;
            }
            *skip = Skip(total as u16 | u16::from(ends) << 6 | (count as u16) << 7);
        }
    }

    /// The symbols of the next bits, of which [`LOOKUP`] must be loaded, and all of a value's.
    #[inline(always)]
    pub fn skip(&self, bits: &Bits) -> Skip {
        self.skips[bits.peek(LOOKUP) as usize]
    }

    /// The symbol of the next bits, which may be unknown ([`Entry::check`]). At least [`LOOKUP`] of them must be loaded, and all
    /// of a value's.
    #[inline(always)]
    pub fn look(&self, bits: &mut Bits) -> Entry {
        let entry = self.entries[bits.peek(LOOKUP) as usize];
        if entry.total() > 0 {
            return entry;
        }
        let (entry, loaded) = self.look_further(*bits);
        *bits = loaded;
        entry
    }

    /// Takes a code and returns its symbol. The value's bits are left.
    #[inline(always)]
    pub fn take_symbol(&self, bits: &mut Bits) -> Result<Entry, Error> {
        let entry = self.look(bits);
        bits.take(entry.length());
        entry.check()?;
        Ok(entry)
    }

    /// The symbol of a code that is longer than the index. The bits are passed by value, so that a caller's stay in registers.
    #[cold]
    #[inline(never)]
    fn look_further<'a>(&self, mut bits: Bits<'a>) -> (Entry, Bits<'a>) {
        bits.refill();
        let next = bits.peek(16);
        let entry = |length: u32| Some(Entry::new(self.symbol(next >> (16 - length), length)?, length, self.kind));
        ((LOOKUP + 1..=16).find_map(entry).unwrap_or(Entry::UNKNOWN), bits)
    }

    /// The symbol of a code of this length, none of whose beginnings is one.
    pub fn symbol(&self, code: u32, length: u32) -> Option<u8> {
        let place = self.starts[length as usize] + code as i32;
        (code << (16 - length) < self.ends[length as usize]).then(|| self.symbols[place as usize])
    }
}

/// Refuses codes that do not fit into their lengths.
fn check(codes: &Codes, kind: Kind) -> Result<(), Error> {
    let mut code = 0u32;
    for (length, &count) in (1..).zip(&codes.counts) {
        code = (code << 1) + u32::from(count);
        // None has ones alone (C.2).
        if code >= 1 << length {
            return Err(Error::Damaged("a Huffman table has too many codes"));
        }
    }
    // The symbols of differences are numbers of bits, which do not exceed 11 in the standard; 15 in libjpeg.
    if kind == Kind::Dc && codes.symbols.iter().any(|&symbol| symbol > 15) {
        return Err(Error::Damaged("a Huffman table has an invalid symbol"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Several symbols at once take the bits and the coefficients of the single ones.
    #[test]
    fn skips_are_sums_of_symbols() {
        // The usual codes of brightness begin like these: 2 bits for 01 and 02, 3 for 03, 4 for the end of block, and so on.
        let symbols = [0x01, 0x02, 0x03, 0x00, 0x04, 0x11, 0x05, 0x12, 0x21, 0xF0, 0x0A];
        let mut counts = [0; 16];
        counts[1..8].copy_from_slice(&[2, 1, 3, 2, 1, 1, 1]);
        let mut table = Huffman::default();
        table.set(&Codes { counts, symbols: &symbols }, Kind::Ac).unwrap();
        assert!(table.skips.iter().all(|skip| skip.total() == 0));
        table.prepare_skips();
        for next in 0..1u32 << 16 {
            let data = [(next >> 8) as u8, next as u8].map(|byte| if byte == 0xFF { 0xFE } else { byte });
            let mut bits = Bits::new(&data);
            bits.refill();
            let skip = table.skip(&bits);
            let (mut total, mut count) = (0, 0);
            while total < skip.total() {
                assert!(count < Entry::END - Skip::SAFE, "{next:016b}");
                let entry = table.look(&mut bits);
                bits.take(entry.total());
                total += entry.total();
                count += entry.run() + 1;
                assert_eq!(skip.ends() && total == skip.total(), entry.run() == Entry::END, "{next:016b}");
            }
            assert_eq!((skip.total(), skip.count()), (total, count), "{next:016b}");
        }
    }
}
