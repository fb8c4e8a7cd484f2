//! The blocks of a scan as libjpeg reads them (`jdhuff.c`, `jdphuff.c`): any bits are coefficients.

use super::reader::Reader;
use crate::Error;
use crate::header::MAX_COMPONENTS;
use crate::huffman::Huffman;
use crate::scan::Scan;
use crate::segments::Segments;
use crate::transform::{Block, PLACES};

/// A scan that is being read.
pub(super) struct Pass<'a> {
    pub scan: Scan,
    reader: Reader<'a>,
    /// The first coefficient of each component's block before.
    previous: [i32; MAX_COMPONENTS],
    /// Blocks to come without further coefficients.
    ended: u32,
    /// MCUs between two restart markers, or 0 without any; those left before the next one, and its number.
    interval: usize,
    left: usize,
    number: u8,
}

/// The component of a block, with its tables.
pub(super) struct Source<'a> {
    pub component: usize,
    pub dc: &'a Huffman,
    pub ac: &'a Huffman,
}

impl<'a> Pass<'a> {
    pub fn new(scan: Scan, data: &'a [u8], interval: usize) -> Self {
        let reader = Reader::new(data);
        let previous = [0; MAX_COMPONENTS];
        Pass { scan, reader, previous, ended: 0, interval, left: interval, number: 0 }
    }

    /// What follows the scan.
    pub fn rest(&self) -> Segments<'a> {
        self.reader.rest()
    }

    /// Whether the blocks that come next have data, unless a restart marker is first.
    pub fn has_data(&self) -> bool {
        !self.reader.ran_out
    }

    /// To be called before each MCU: takes the restart marker if there is to be one. Returns whether the MCU's blocks are to be
    /// read, or left as they are.
    pub fn next(&mut self) -> Result<bool, Error> {
        if self.interval > 0 {
            if self.left == 0 {
                self.reader.restart(self.number)?;
                (self.previous, self.ended, self.left) = ([0; MAX_COMPONENTS], 0, self.interval);
                self.number = (self.number + 1) % 8;
            }
            self.left -= 1;
        }
        Ok(self.has_data())
    }

    /// Reads what the scan has of the next block.
    pub fn block(&mut self, source: &Source, block: &mut Block) -> Result<(), Error> {
        match (self.scan.first, self.scan.refines) {
            (0, _) if self.scan.last > 0 => {
                self.first(source, block)?;
                self.others(source.ac, block)
            }
            (0, false) => self.first(source, block),
            (0, true) => {
                block[0] |= (self.reader.take(1)? << self.scan.low) as i16;
                Ok(())
            }
            (_, false) => self.others(source.ac, block),
            (_, true) => self.refine(source.ac, block),
        }
    }

    fn first(&mut self, source: &Source, block: &mut Block) -> Result<(), Error> {
        let size = self.reader.symbol(source.dc)?;
        let previous = &mut self.previous[source.component];
        *previous = previous.wrapping_add(self.reader.value(size)?);
        block[0] = (*previous << self.scan.low) as i16;
        Ok(())
    }

    /// A symbol other than that of a first coefficient: zeros before a value, and the value's bits.
    fn run_and_size(&mut self, table: &Huffman) -> Result<(usize, u8), Error> {
        let symbol = self.reader.symbol(table)?;
        Ok((usize::from(symbol >> 4), symbol & 15))
    }

    /// A number of blocks that have no further coefficients: this one among them (G.1.2.2). In a sequential scan it is always one.
    fn end_of_band(&mut self, exponent: usize) -> Result<u32, Error> {
        match self.scan.last - self.scan.first {
            63 => Ok(1),
            _ => Ok((1 << exponent) + self.reader.take(exponent as u32)?),
        }
    }

    /// Coefficients of which nothing is known yet.
    fn others(&mut self, table: &Huffman, block: &mut Block) -> Result<(), Error> {
        if self.ended > 0 {
            self.ended -= 1;
            return Ok(());
        }
        let mut k = self.scan.first.max(1);
        while k <= self.scan.last {
            let (run, size) = self.run_and_size(table)?;
            if size == 0 && run < 15 {
                self.ended = self.end_of_band(run)? - 1;
                break;
            }
            k += run;
            if size > 0 {
                *coefficient(block, k) = (self.reader.value(size)? << self.scan.low) as i16;
            }
            k += 1;
        }
        Ok(())
    }

    /// Another bit of coefficients (G.1.2.3).
    fn refine(&mut self, table: &Huffman, block: &mut Block) -> Result<(), Error> {
        let one = 1i16 << self.scan.low;
        let mut k = self.scan.first;
        while self.ended == 0 && k <= self.scan.last {
            let (mut run, size) = self.run_and_size(table)?;
            if size == 0 && run < 15 {
                self.ended = self.end_of_band(run)?;
                break;
            }
            let new = match size {
                0 => None,
                _ => Some(if self.reader.take(1)? == 1 { one } else { -one }),
            };
            // Zeros are counted; the coefficients between them get their bits.
            while k <= self.scan.last {
                let coefficient = coefficient(block, k);
                if *coefficient != 0 {
                    self.correct(coefficient, one)?;
                } else if run > 0 {
                    run -= 1;
                } else {
                    break;
                }
                k += 1;
            }
            if let Some(new) = new {
                *coefficient(block, k) = new;
            }
            k += 1;
        }
        if self.ended > 0 {
            for k in k..=self.scan.last {
                let coefficient = coefficient(block, k);
                if *coefficient != 0 {
                    self.correct(coefficient, one)?;
                }
            }
            self.ended -= 1;
        }
        Ok(())
    }

    /// Another bit of a coefficient that is known not to be zero.
    fn correct(&mut self, coefficient: &mut i16, one: i16) -> Result<(), Error> {
        if self.reader.take(1)? == 1 && *coefficient & one == 0 {
            *coefficient = coefficient.wrapping_add(if *coefficient > 0 { one } else { -one });
        }
        Ok(())
    }
}

/// The coefficient of a place in zigzag order. Places beyond the last one stand for it.
fn coefficient(block: &mut Block, k: usize) -> &mut i16 {
    &mut block[usize::from(PLACES[k.min(63)])]
}
