//! Images of several scans: progressive ones, and those whose components come one after the other. All coefficients are
//! kept down to the end of the region, and become pixels after the last scan.

use crate::Error;
use crate::bits::Bits;
use crate::block::{Coding, OVERFLOW, Zigzag, difference};
use crate::buffer::fit;
use crate::coefficients::{Field, Painter, fields};
use crate::decoder::Memory;
use crate::header::{Jpeg, MAX_COMPONENTS};
use crate::huffman::Huffman;
use crate::known::Known;
use crate::layout::Layout;
use crate::scan::{Part, Progress, Scan};
use crate::sequential::factors;
use crate::transform::{Block, PLACES};

/// Most scans of an image. Encoders use about ten; each may be short and still visit every block.
pub(crate) const MAX_SCANS: usize = 100;

impl Memory {
    /// Decodes the region from all scans.
    pub(crate) fn buffered<'a>(&mut self, jpeg: &Jpeg, layout: &'a Layout, out: &'a mut [u8]) -> Result<(), Error> {
        let (fields, blocks) = fields(jpeg, layout, layout.end_row);
        fit(&mut self.coefficients, blocks, [0; 64])?;
        self.coefficients.fill([0; 64]);
        let quantization = self.read_scans(jpeg, layout, &fields)?;
        let mut painter = Painter::new(self, jpeg, layout, &quantization, out)?;
        (layout.first_row..layout.end_row).for_each(|row| painter.row(self, &fields, row, row));
        if painter.overflowed { Err(OVERFLOW) } else { Ok(()) }
    }

    /// Reads all scans, and returns the factors of each component.
    fn read_scans(
        &mut self,
        jpeg: &Jpeg,
        layout: &Layout,
        fields: &[Field],
    ) -> Result<[Zigzag<i16>; MAX_COMPONENTS], Error> {
        let mut tables = jpeg.tables.clone();
        let mut segments = jpeg.scans;
        let mut quantization = [[0; 128]; MAX_COMPONENTS];
        let mut known = [Known::NOTHING; MAX_COMPONENTS];
        let mut scans = 0;
        while let Some(scan) = Scan::next(jpeg, &mut segments, &mut tables)? {
            if scans == MAX_SCANS {
                return Err(Error::Damaged("it has more than 100 scans"));
            }
            scans += 1;
            self.set_tables(&tables, &scan)?;
            for part in scan.components() {
                let known = &mut known[part.component];
                let begins = scan.first == 0 && !scan.refines;
                // A sequential component has one scan; a progressive one begins with its first coefficients.
                if begins == known.has_begun() {
                    return Err(Error::Damaged("the order of its scans is invalid"));
                }
                known.learn(&scan);
                if begins {
                    quantization[part.component] = factors(&tables, jpeg.components[part.component].quantization)?;
                }
            }
            let mut progress = Progress::new(segments.rest(), tables.restart_interval);
            self.read_scan(layout, fields, &scan, &mut progress)?;
            progress.bits.check()?;
            segments.skip(progress.bits.position());
        }
        // Where some bits are missing, libjpeg makes up for them.
        if known[..layout.count].iter().any(|known| !known.is_complete()) {
            return Err(Error::Damaged("scans are missing"));
        }
        Ok(quantization)
    }

    fn read_scan(
        &mut self,
        layout: &Layout,
        fields: &[Field],
        scan: &Scan,
        progress: &mut Progress,
    ) -> Result<(), Error> {
        let Memory { dc, ac, coefficients, .. } = self;
        let read = |progress: &mut Progress, part: &Part, block: &mut Block| -> Result<(), Error> {
            let Progress { bits, previous, ended, .. } = progress;
            let dc = &dc[part.dc];
            let ac = &ac[part.ac];
            let previous = &mut previous[part.component];
            match (scan.first, scan.refines) {
                (0, _) if scan.last == 63 => {
                    let coding = Coding { dc, ac, quantization: &[1; 128] };
                    coding.decode(bits, previous, block)?;
                }
                (0, false) => block[0] = difference(dc, bits, previous)? << scan.low,
                (0, true) => {
                    bits.refill();
                    block[0] |= (bits.get(1) << scan.low) as i16;
                }
                (_, false) => first_pass(ac, bits, ended, scan, block)?,
                (_, true) => refine(ac, bits, ended, scan, block)?,
            }
            Ok(())
        };
        if let [part] = scan.components() {
            let field = &fields[part.component];
            for row in 0..field.height {
                for block in &mut coefficients[field.start + row * field.stride..][..field.width] {
                    progress.next()?;
                    read(progress, part, block)?;
                }
            }
            return Ok(());
        }
        for row in 0..layout.end_row {
            for column in 0..layout.mcus_across {
                progress.next()?;
                for part in scan.components() {
                    let field = &fields[part.component];
                    let plane = &layout.planes[part.component];
                    for down in 0..plane.down {
                        let start = field.start + (row * plane.down + down) * field.stride + column * plane.across;
                        for block in &mut coefficients[start..][..plane.across] {
                            read(progress, part, block)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

const OVERRUN: Error = Error::Damaged("a block has more coefficients than its band");

/// A number of blocks that have no further coefficients: this one among them (G.1.2.2).
#[inline(always)]
fn end_of_band(bits: &mut Bits, exponent: usize) -> u32 {
    (1 << exponent) + bits.get(exponent as u32)
}

/// The high bits of a band of coefficients (G.1.2.2).
fn first_pass(table: &Huffman, bits: &mut Bits, ended: &mut u32, scan: &Scan, block: &mut Block) -> Result<(), Error> {
    if *ended > 0 {
        *ended -= 1;
        return Ok(());
    }
    let mut k = scan.first;
    while k <= scan.last {
        bits.refill();
        let symbol = table.look(bits);
        symbol.check()?;
        let (run, size) = (symbol.run(), symbol.size());
        let value = bits.value(symbol);
        if size == 0 && run < 15 {
            *ended = end_of_band(bits, run) - 1;
            break;
        }
        k += run;
        if k > scan.last {
            return Err(OVERRUN);
        }
        block[usize::from(PLACES[k])] = (value << scan.low) as i16;
        k += 1;
    }
    Ok(())
}

/// Another bit of a band of coefficients (G.1.2.3).
fn refine(table: &Huffman, bits: &mut Bits, ended: &mut u32, scan: &Scan, block: &mut Block) -> Result<(), Error> {
    let one = 1i16 << scan.low;
    // Another bit of a coefficient that is known not to be zero.
    let correct = |bits: &mut Bits, coefficient: &mut i16| {
        bits.refill();
        if bits.get(1) == 1 && *coefficient & one == 0 {
            *coefficient = coefficient.wrapping_add(if *coefficient > 0 { one } else { -one });
        }
    };
    let mut k = scan.first;
    while *ended == 0 && k <= scan.last {
        bits.refill();
        let symbol = table.take_symbol(bits)?;
        let (mut run, size) = (symbol.run(), symbol.size());
        let mut value = 0;
        match size {
            0 if run < 15 => {
                *ended = end_of_band(bits, run);
                break;
            }
            0 => {}
            1 => value = if bits.get(1) == 1 { one } else { -one },
            _ => return Err(Error::Damaged("a refined coefficient has more than one bit")),
        }
        // Zeros are counted; the coefficients between them get their bits.
        while k <= scan.last {
            let coefficient = &mut block[usize::from(PLACES[k])];
            k += 1;
            if *coefficient != 0 {
                correct(bits, coefficient);
            } else if run > 0 {
                run -= 1;
            } else {
                *coefficient = std::mem::take(&mut value);
                break;
            }
        }
        if value != 0 {
            return Err(OVERRUN);
        }
    }
    if *ended > 0 {
        for &place in PLACES.get(k..=scan.last).unwrap_or_default() {
            let coefficient = &mut block[usize::from(place)];
            if *coefficient != 0 {
                correct(bits, coefficient);
            }
        }
        *ended -= 1;
    }
    Ok(())
}
