//! From coefficients to streams.

use super::{MOST_SMALL, SLACK, WIDE, WIDE_FIRSTS};

/// Writes the rows of a picture.
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
        const LARGEST_SMALL: u16 = 2 + MOST_SMALL;
        let last = block.iter().rposition(|&value| value != 0).unwrap_or(0);
        let wide = block[1..].iter().any(|value| value.unsigned_abs() > LARGEST_SMALL + 255);
        self.heads.push(last as u8 | if wide { WIDE } else { 0 });
        self.firsts.push(block[0]);
        for &value in &block[1..last + 1] {
            let size = value.unsigned_abs();
            self.places.push(u16::from(size > 0), 1);
            if size > 0 {
                self.below.push(u16::from(value < 0), 1);
                self.large.push(u16::from(size > 1), 1);
            }
            if size > 1 {
                self.small.push(size.min(LARGEST_SMALL) - 2, 4);
            }
            if size >= LARGEST_SMALL {
                self.rest.extend(&(size - LARGEST_SMALL).to_le_bytes()[..if wide { 2 } else { 1 }]);
            }
        }
    }

    /// Appends the row to `out`, and begins another one.
    fn finish(&mut self, out: &mut Vec<u8>) {
        let row = std::mem::take(self);
        let wide_firsts = row.firsts.iter().any(|&first| i8::try_from(first).is_err());
        let flag = if wide_firsts { WIDE_FIRSTS } else { 0 };
        let [places, below, large, small] = [row.places, row.below, row.large, row.small].map(|stream| stream.bytes);
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
    count: usize,
}

impl BitWriter {
    /// Adds the lowest `count` bits of a number, which divide a byte.
    fn push(&mut self, number: u16, count: usize) {
        if self.count.is_multiple_of(8) {
            self.bytes.push(0);
        }
        if let Some(last) = self.bytes.last_mut() {
            *last |= (number as u8) << (self.count % 8);
        }
        self.count += count;
    }
}
