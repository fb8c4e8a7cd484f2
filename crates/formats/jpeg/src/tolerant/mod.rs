//! Damaged images, with the pixels that libjpeg gives them: it warns and goes on where it can.
//!
//! The other modules decode undamaged images, and stop at the first contradiction. Then the image is decoded once more, by the
//! code here, which is plain and slow. What libjpeg refuses is an error here too, wherever in the file it is, and so is an image
//! whose data end before it is complete: Pillow does not fill these up.
//!
//! - Unknown codes stand for 0, and coefficients beyond the last one are written to its place (`blocks`).
//! - At a marker, zeros take the place of missing bits up to the end of the MCU, and the blocks up to the next restart marker
//!   stay as they are. Restart markers that are missing or wrong are looked for (`reader`).
//! - Where progressive images lack scans, coefficients are estimated from the blocks around (`smoothing`).

mod blocks;
mod reader;
mod smoothing;

use crate::Error;
use crate::block::Zigzag;
use crate::buffer::fit;
use crate::coefficients::{Field, Painter, fields};
use crate::decoder::Memory;
use crate::header::{Jpeg, MAX_COMPONENTS};
use crate::known::Known;
use crate::layout::Layout;
use crate::progressive::MAX_SCANS;
use crate::scan::Scan;
use crate::segments::{Segments, is_frame};
use crate::sequential::factors;
use crate::tables::Tables;
use crate::transform::{PLACES, is_first_row};
use blocks::{Pass, Source};

/// Factors of coefficients that have been multiplied already.
const ONES: [Zigzag<i16>; MAX_COMPONENTS] = [[1; 128]; MAX_COMPONENTS];

/// What is known of the scans that have been read.
struct Seen {
    scans: usize,
    known: [Known; MAX_COMPONENTS],
    /// The same before each component's last scan.
    before: [Known; MAX_COMPONENTS],
    /// Factors of each component, or zeros before its first scan.
    quantization: [Zigzag<i16>; MAX_COMPONENTS],
    /// The last row of MCUs of which the last scan had data.
    last_row: usize,
}

impl Memory {
    /// Decodes the region of an image that may be damaged anywhere after its header.
    pub(crate) fn tolerant<'a>(&mut self, jpeg: &Jpeg, layout: &'a Layout, out: &'a mut [u8]) -> Result<(), Error> {
        let mut segments = jpeg.scans;
        let mut tables = jpeg.tables.clone();
        let mut seen = Seen {
            scans: 0,
            known: [Known::NOTHING; MAX_COMPONENTS],
            before: [Known::ALL; MAX_COMPONENTS],
            quantization: [[0; 128]; MAX_COMPONENTS],
            last_row: 0,
        };
        let first = Scan::next(jpeg, &mut segments, &mut tables)?.ok_or(Error::Truncated)?;
        if !jpeg.progressive && first.count == jpeg.count {
            let mut pass = self.pass(jpeg, &first, &tables, segments, &mut seen)?;
            self.single(jpeg, layout, &mut pass, &seen, out)?;
            return check_end(pass.rest());
        }
        let (fields, blocks) = fields(jpeg, layout, layout.mcus_down);
        fit(&mut self.coefficients, blocks, [0; 64])?;
        self.coefficients.fill([0; 64]);
        let mut next = Some(first);
        while let Some(scan) = next {
            let mut pass = self.pass(jpeg, &scan, &tables, segments, &mut seen)?;
            self.scan(layout, &fields, &mut pass, &mut seen)?;
            segments = pass.rest();
            next = Scan::next(jpeg, &mut segments, &mut tables)?;
        }
        if jpeg.progressive {
            smoothing::smooth(&mut self.coefficients, layout, &fields, &seen)?;
        }
        self.multiply(layout, &fields, layout.mcus_down, &seen);
        let mut painter = Painter::new(self, jpeg, layout, &ONES, out)?;
        (layout.first_row..layout.end_row).for_each(|row| painter.row(self, &fields, row, row));
        Ok(())
    }

    /// Begins a scan.
    fn pass<'a>(
        &mut self,
        jpeg: &Jpeg,
        scan: &Scan,
        tables: &Tables,
        segments: Segments<'a>,
        seen: &mut Seen,
    ) -> Result<Pass<'a>, Error> {
        if seen.scans == MAX_SCANS {
            return Err(Error::Damaged("it has more than 100 scans"));
        }
        seen.scans += 1;
        self.set_tables(tables, scan)?;
        for part in scan.components() {
            let component = part.component;
            if seen.quantization[component] == [0; 128] {
                seen.quantization[component] = factors(tables, jpeg.components[component].quantization)?;
            }
            if seen.scans > 1 {
                seen.before[component] = seen.known[component];
            }
            seen.known[component].learn(scan);
        }
        Ok(Pass::new(*scan, segments.rest(), tables.restart_interval))
    }

    /// Decodes an image whose only scan has everything. Each row of MCUs becomes pixels before the next one is decoded.
    fn single<'a>(
        &mut self,
        jpeg: &Jpeg,
        layout: &'a Layout,
        pass: &mut Pass,
        seen: &Seen,
        out: &'a mut [u8],
    ) -> Result<(), Error> {
        let (fields, blocks) = fields(jpeg, layout, 1);
        fit(&mut self.coefficients, blocks, [0; 64])?;
        let mut painter = Painter::new(self, jpeg, layout, &ONES, out)?;
        for row in 0..layout.mcus_down {
            self.coefficients.fill([0; 64]);
            for column in 0..layout.mcus_across {
                self.mcu(layout, &fields, pass, 0, column)?;
            }
            if (layout.first_row..layout.end_row).contains(&row) {
                self.multiply(layout, &fields, 1, seen);
                painter.row(self, &fields, row, 0);
            }
        }
        Ok(())
    }

    /// Reads the coefficients of one of several scans.
    fn scan(&mut self, layout: &Layout, fields: &[Field], pass: &mut Pass, seen: &mut Seen) -> Result<(), Error> {
        let (rows, columns, rows_of_mcu) = match pass.scan.components() {
            [alone] => {
                let Field { width, height, .. } = fields[alone.component];
                (height, width, layout.planes[alone.component].down)
            }
            _ => (layout.mcus_down, layout.mcus_across, 1),
        };
        for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
            if self.mcu(layout, fields, pass, row, column)? {
                seen.last_row = row / rows_of_mcu;
            }
        }
        Ok(())
    }

    /// Reads the next MCU of a scan. Returns whether there were data left before it.
    fn mcu(
        &mut self,
        layout: &Layout,
        fields: &[Field],
        pass: &mut Pass,
        row: usize,
        column: usize,
    ) -> Result<bool, Error> {
        let had_data = pass.has_data();
        if !pass.next()? {
            return Ok(had_data);
        }
        let Memory { dc, ac, coefficients, .. } = self;
        let scan = pass.scan;
        for part in scan.components() {
            let field = &fields[part.component];
            let plane = &layout.planes[part.component];
            let (across, down) = if scan.count == 1 { (1, 1) } else { (plane.across, plane.down) };
            let source = Source { component: part.component, dc: &dc[part.dc], ac: &ac[part.ac] };
            for block_row in row * down..(row + 1) * down {
                let start = field.start + block_row * field.stride + column * across;
                for block in &mut coefficients[start..][..across] {
                    pass.block(&source, block)?;
                }
            }
        }
        Ok(had_data)
    }

    /// Multiplies so many rows of MCUs with their factors. Products keep their lowest 16 bits, as in libjpeg-turbo's vectors.
    fn multiply(&mut self, layout: &Layout, fields: &[Field], rows: usize, seen: &Seen) {
        for ((plane, field), factors) in layout.planes().iter().zip(fields).zip(&seen.quantization) {
            for block in &mut self.coefficients[field.start..][..field.stride * plane.down * rows] {
                let is_row = block.iter().enumerate().all(|(place, &value)| value == 0 || is_first_row(place));
                // What libjpeg-turbo has no room for where it takes a shorter way.
                let lost = match plane.edge {
                    1 => 3,
                    4 | 8 if is_row => 2,
                    _ => 0,
                };
                for (place, factor) in PLACES.iter().zip(factors) {
                    let coefficient = &mut block[usize::from(*place)];
                    *coefficient = coefficient.wrapping_mul(*factor) << lost >> lost;
                }
            }
        }
    }
}

/// Looks at what follows the only scan of an image. All pixels are there, so nothing needs to, not even the end marker.
fn check_end(mut segments: Segments) -> Result<(), Error> {
    loop {
        match segments.marker() {
            Ok(None) | Err(Error::Truncated) => return Ok(()),
            // Such segments are what damage has made of pixels.
            Ok(Some(marker @ (0xC0..=0xDB | 0xDD))) if is_frame(marker) || segments.rest().len() >= 2 => {
                return Err(Error::Damaged("its scan is not the last one"));
            }
            Ok(Some(_)) if segments.content().is_err() => return Ok(()),
            Ok(Some(_)) => {}
            Err(error) => return Err(error),
        }
    }
}
