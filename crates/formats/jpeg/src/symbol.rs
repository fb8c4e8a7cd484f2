//! The symbols of Huffman codes: what the next bits of a scan stand for.

use crate::Error;

/// What the next bits stand for: a code, the run of zeros before a value, and the number of the value's own bits.
///
/// From the lowest bit on: 6 bits with the number of all bits to take, which is 0 for an unknown code; 5 with those of the
/// code; 4 with those of the value; and the run. A processor shifts 64 bits by the lowest 6 of a number, so the next bits are
/// there one step sooner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry(u32);

impl Entry {
    /// Bits that are no code, or a code that is longer than the index. No bits are taken, and the block ends.
    pub const UNKNOWN: Entry = Entry((Self::END as u32) << 15);

    /// The run that stands for the end of a block. It leads beyond the block, but not so far that the place of a coefficient
    /// would not exist.
    pub const END: usize = 64;

    pub fn new(symbol: u8, length: u32, kind: Kind) -> Self {
        let run = u32::from(symbol >> 4);
        let size = u32::from(symbol & 15);
        let run = if kind == Kind::Ac && size == 0 && run < 15 { Self::END as u32 } else { run };
        Entry((length + size) | length << 6 | size << 11 | run << 15)
    }

    /// Bits of code and value.
    #[inline(always)]
    pub fn total(self) -> u32 {
        self.0 & 63
    }

    /// Bits of the code.
    #[inline(always)]
    pub fn length(self) -> u32 {
        self.0 >> 6 & 31
    }

    /// Bits of the value.
    #[inline(always)]
    pub fn size(self) -> u32 {
        self.0 >> 11 & 15
    }

    /// Fails for bits that are no code.
    #[inline(always)]
    pub fn check(self) -> Result<(), Error> {
        if self.total() == 0 { Err(Error::Damaged("there is no such Huffman code")) } else { Ok(()) }
    }

    /// Zeros before the value, or [`END`](Self::END).
    #[inline(always)]
    pub fn run(self) -> usize {
        (self.0 >> 15) as usize
    }
}

/// What the symbols of a table mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Numbers of bits.
    #[default]
    Dc,
    /// Runs and numbers of bits. A symbol without bits ends the block, unless its run is 15.
    Ac,
    /// The same in a progressive scan, where such a symbol may end several blocks.
    Band,
}
