//! Images of several scans: progressive ones, and those whose components come one after the other. All coefficients are
//! kept down to the end of the region, and become pixels after the last scan.

use crate::Error;
use crate::bits::Bits;
use crate::block::{Coding, Zigzag, difference};
use crate::buffer::fit;
use crate::decoder::Memory;
use crate::header::Jpeg;
use crate::huffman::Huffman;
use crate::layout::Layout;
use crate::rows::Rows;
use crate::scan::{Part, Progress, Scan};
use crate::sequential::factors;
use crate::transform::{Block, PLACES, Transforms};

/// Most scans of an image. Encoders use about ten; each may be short and still visit every block.
const MAX_SCANS: usize = 100;

/// The blocks of one component.
#[derive(Clone, Copy, Default)]
struct Field {
    /// Place of the first one.
    start: usize,
    /// Blocks of a row, those that fill up the last MCU among them.
    stride: usize,
    /// Blocks of a row and of a column, without those.
    width: usize,
    height: usize,
    /// Whether a scan has had its first coefficients.
    begun: bool,
}

impl Memory {
    /// Decodes the region from all scans.
    pub(crate) fn buffered(&mut self, jpeg: &Jpeg, layout: &Layout, out: &mut [u8]) -> Result<(), Error> {
        let mut fields = [Field::default(); 3];
        let mut blocks = 0;
        for (field, (component, plane)) in fields.iter_mut().zip(jpeg.components().iter().zip(layout.planes())) {
            let stride = layout.mcus_across * component.across;
            let across = |pixels: usize, own: usize, mcu_edge: usize| (pixels * own).div_ceil(mcu_edge);
            let (mcu_width, mcu_height) = layout.mcu_edges();
            let width = across(jpeg.width, component.across, mcu_width);
            let height = across(jpeg.height, component.down, mcu_height).min(layout.end_row * plane.down);
            *field = Field { start: blocks, stride, width, height, begun: false };
            blocks += stride * layout.end_row * component.down;
        }
        fit(&mut self.coefficients, blocks, [0; 64])?;
        self.coefficients.fill([0; 64]);
        let quantization = self.read_scans(jpeg, layout, &mut fields)?;
        self.transform(jpeg, layout, &fields, &quantization, out)
    }

    /// Reads all scans, and returns the factors of each component.
    fn read_scans(&mut self, jpeg: &Jpeg, layout: &Layout, fields: &mut [Field; 3]) -> Result<[Zigzag<i16>; 3], Error> {
        let mut tables = jpeg.tables.clone();
        let mut segments = jpeg.scans;
        let mut quantization = [[0; 128]; 3];
        let mut scans = 0;
        while !segments.at_end()? {
            let (marker, content) = segments.next()?;
            match marker {
                0xDA if scans == MAX_SCANS => return Err(Error::Damaged("it has more than 100 scans")),
                0xDA => scans += 1,
                0xC0..=0xC3 | 0xC5..=0xC7 | 0xC9..=0xCB | 0xCD..=0xCF => {
                    return Err(Error::Damaged("it has two frames"));
                }
                _ => {
                    tables.read(marker, content)?;
                    continue;
                }
            }
            let scan = Scan::parse(jpeg, content)?;
            self.set_tables(&tables, &scan)?;
            for part in scan.components() {
                let field = &mut fields[part.component];
                let begins = scan.first == 0 && !scan.refines;
                // A sequential component has one scan; a progressive one begins with its first coefficients.
                if begins == field.begun {
                    return Err(Error::Damaged("the order of its scans is invalid"));
                }
                if begins {
                    field.begun = true;
                    quantization[part.component] = factors(&tables, jpeg.components[part.component].quantization)?;
                }
            }
            let mut progress = Progress::new(segments.rest(), tables.restart_interval);
            self.read_scan(layout, fields, &scan, &mut progress)?;
            progress.bits.check()?;
            segments.skip(progress.bits.position());
        }
        if fields[..layout.count].iter().any(|field| !field.begun) {
            return Err(Error::Damaged("a component has no scan"));
        }
        Ok(quantization)
    }

    fn read_scan(
        &mut self,
        layout: &Layout,
        fields: &[Field; 3],
        scan: &Scan,
        progress: &mut Progress,
    ) -> Result<(), Error> {
        let Memory { dc, ac, coefficients, .. } = self;
        let read = |progress: &mut Progress, part: &Part, block: &mut Block| -> Result<(), Error> {
            let Progress { bits, previous, ended, .. } = progress;
            let (dc, ac, previous) = (&dc[part.dc], &ac[part.ac], &mut previous[part.component]);
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
                    let (field, plane) = (&fields[part.component], &layout.planes[part.component]);
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

    /// Turns the coefficients into pixels.
    fn transform(
        &mut self,
        jpeg: &Jpeg,
        layout: &Layout,
        fields: &[Field; 3],
        quantization: &[Zigzag<i16>; 3],
        out: &mut [u8],
    ) -> Result<(), Error> {
        let mut rows = Rows::new(layout, jpeg.color, self.level);
        self.strip.fit(&rows)?;
        let Memory { level, group, strip, coefficients, .. } = self;
        let mut in_order = [[0; 64]; 3];
        for (in_order, factors) in in_order.iter_mut().zip(quantization) {
            for (place, factor) in PLACES.iter().zip(factors) {
                in_order[usize::from(*place)] = *factor;
            }
        }
        let mut out = out.chunks_exact_mut(layout.region.width * 3);
        for mcu_row in layout.first_row..layout.end_row {
            let mut transforms = Transforms::new(*level, group, &mut strip.samples);
            for (component, plane) in layout.planes().iter().enumerate() {
                let (field, factors) = (&fields[component], &in_order[component]);
                for row in 0..plane.down {
                    let start = field.start + (mcu_row * plane.down + row) * field.stride;
                    for column in layout.first_column * plane.across..layout.end_column * plane.across {
                        let block = &coefficients[start + column];
                        let target = rows.target(component, column, row);
                        if plane.edge == 1 || block[1..].iter().all(|&coefficient| coefficient == 0) {
                            transforms.fill(block[0].wrapping_mul(factors[0]), target);
                            continue;
                        }
                        let into = transforms.room(plane.edge);
                        for (into, (coefficient, factor)) in into.iter_mut().zip(block.iter().zip(factors)) {
                            *into = coefficient.wrapping_mul(*factor);
                        }
                        transforms.push(target);
                    }
                }
            }
            transforms.flush();
            rows.make(mcu_row, strip, &mut out);
        }
        Ok(())
    }
}

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
            return Err(Error::Damaged("a block has more coefficients than its band"));
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
                *coefficient = value;
                break;
            }
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
