//! From coefficients to streams.

use super::{MAX_SMALL, SLACK, WIDE, WIDE_FIRSTS};

/// Writes the rows of an image.
pub(crate) struct Writer {
    row: RowWriter,
    starts: Vec<u32>,
    rows: Vec<u8>,
}

impl Writer {
    pub fn new() -> Self {
        Writer { row: RowWriter::default(), starts: Vec::new(), rows: Vec::new() }
    }

    /// Adds a block of the next row, with its coefficients in zigzag order, the first one as a difference.
    pub fn push(&mut self, block: &[i16; 64]) {
        self.row.push(block);
    }

    /// Ends a row.
    pub fn end_row(&mut self) {
        self.starts.push(self.rows.len() as u32);
        self.row.finish(&mut self.rows);
    }

    /// Appends everything to `out`.
    pub fn finish(mut self, out: &mut Vec<u8>) {
        self.starts.push(self.rows.len() as u32);
        self.starts.iter().for_each(|start| out.extend(start.to_le_bytes()));
        out.extend(self.rows);
        out.extend([0; SLACK]);
    }
}

/// Writes a row of MCUs.
#[derive(Debug, Default)]
struct RowWriter {
    heads: Vec<u8>,
    firsts: Vec<i16>,
    places: BitWriter,
    below: BitWriter,
    large: BitWriter,
    small: BitWriter,
    rest: Vec<u8>,
}

impl RowWriter {
    /// Adds a block with its coefficients in zigzag order, the first one as a difference.
    fn push(&mut self, block: &[i16; 64]) {
        const MAX_SMALL_VALUE: u16 = 2 + MAX_SMALL;
        let places = (1..64).fold(0u64, |places, place| places | u64::from(block[place] != 0) << place);
        let wide = block[1..].iter().any(|value| value.unsigned_abs() > MAX_SMALL_VALUE + 255);
        let (mut below, mut large, mut values, mut left) = (0u64, 0u64, 0, places);
        while left > 0 {
            let value = block[left.trailing_zeros() as usize];
            let size = value.unsigned_abs();
            below |= u64::from(value < 0) << values;
            if size > 1 {
                large |= 1 << values;
                self.small.push(u64::from(size.min(MAX_SMALL_VALUE) - 2), 4);
            }
            if size >= MAX_SMALL_VALUE {
                self.rest.extend(&(size - MAX_SMALL_VALUE).to_le_bytes()[..if wide { 2 } else { 1 }]);
            }
            (values, left) = (values + 1, left & (left - 1));
        }
        let last = 63 - (places | 1).leading_zeros();
        self.heads.push(last as u8 | if wide { WIDE } else { 0 });
        self.firsts.push(block[0]);
        self.places.push(places >> 1, last);
        self.below.push(below, values);
        self.large.push(large, values);
    }

    /// Appends the row to `out`, and begins another one.
    fn finish(&mut self, out: &mut Vec<u8>) {
        let row = std::mem::take(self);
        let wide_firsts = row.firsts.iter().any(|&first| i8::try_from(first).is_err());
        let flag = if wide_firsts { WIDE_FIRSTS } else { 0 };
        let [places, below, large, small] = [row.places, row.below, row.large, row.small].map(BitWriter::finish);
        for number in [places.len() | flag, below.len(), small.len()] {
            out.extend((number as u32).to_le_bytes());
        }
        out.extend(row.heads);
        row.firsts.iter().for_each(|first| out.extend(&first.to_le_bytes()[..if wide_firsts { 2 } else { 1 }]));
        [places, below, large, small, row.rest].into_iter().for_each(|bytes| out.extend(bytes));
    }
}

/// A stream of bits.
#[derive(Debug, Default)]
struct BitWriter {
    bytes: Vec<u8>,
    /// Bits that do not fill a byte yet.
    waiting: u8,
    count: u32,
}

impl BitWriter {
    /// Adds a number of `count` bits, at most 64.
    fn push(&mut self, bits: u64, count: u32) {
        let all = u128::from(bits) << self.count | u128::from(self.waiting);
        let count = self.count + count;
        let whole = count / 8;
        self.bytes.extend_from_slice(&all.to_le_bytes()[..whole as usize]);
        self.waiting = (all >> (whole * 8)) as u8;
        self.count = count % 8;
    }

    /// All bytes, the last one filled up with zeros.
    fn finish(mut self) -> Vec<u8> {
        self.bytes.extend((self.count > 0).then_some(self.waiting));
        self.bytes
    }
}
