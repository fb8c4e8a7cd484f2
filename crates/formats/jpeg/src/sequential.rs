//! Images whose only scan has everything: each row of MCUs becomes pixels before the next one is decoded.

use enmasse_system::simd::SimdLevel;

use crate::Error;
use crate::block::{Coding, Zigzag};
use crate::decoder::Memory;
use crate::header::{Jpeg, MAX_COMPONENTS};
use crate::layout::{Layout, Plane};
use crate::rows::Rows;
use crate::scan::{Progress, Scan};
use crate::tables::Tables;
use crate::transform::Transforms;

/// MCUs to leave out for which tables pay off.
const WORTH_TABLES: usize = 200;

/// A component of the scan, with what its blocks need.
struct Source<'a> {
    component: usize,
    plane: &'a Plane,
    coding: Coding<'a>,
}

impl Memory {
    /// Decodes the region from the scan whose entropy-coded data are `data`. Returns how many of them have been read.
    pub(crate) fn sequential(
        &mut self,
        jpeg: &Jpeg,
        layout: &Layout,
        tables: &Tables,
        scan: &Scan,
        data: &[u8],
        out: &mut [u8],
    ) -> Result<usize, Error> {
        self.set_tables(tables, scan)?;
        let mut quantization = [[0; 128]; MAX_COMPONENTS];
        for (numbers, component) in quantization.iter_mut().zip(jpeg.components()) {
            *numbers = factors(tables, component.quantization)?;
        }
        if layout.skipped(tables.restart_interval) > WORTH_TABLES {
            scan.components().iter().for_each(|part| self.ac[part.ac].prepare_skips());
        }
        let mut rows = Rows::new(layout, jpeg.color, self.level);
        self.strip.fit(&rows)?;
        let Memory { level, dc, ac, group, strip, .. } = self;
        let source = |at: usize| {
            let part = scan.components[at];
            let coding = Coding { dc: &dc[part.dc], ac: &ac[part.ac], quantization: &quantization[part.component] };
            Source { component: part.component, plane: &layout.planes[part.component], coding }
        };
        let sources = [0, 1, 2, 3].map(|at| source(at.min(scan.count - 1)));
        let sources = &sources[..scan.count];
        let mut out = out.chunks_exact_mut(layout.region.width * 3);
        let mut progress = Progress::new(data, tables.restart_interval);
        let mut reached = 0;
        for row in layout.first_row..layout.end_row {
            let start = row * layout.mcus_across + layout.first_column;
            with_bits(*level, || {
                progress.skip(start - reached, |progress| skip_mcu(sources, progress))?;
                let mut transforms = Transforms::new(*level, group, &mut strip.samples);
                for column in layout.first_column..layout.end_column {
                    progress.next()?;
                    decode_mcu(sources, &mut progress, &mut transforms, &rows, column)?;
                }
                transforms.flush();
                Ok(())
            })?;
            reached = row * layout.mcus_across + layout.end_column;
            rows.make(row, strip, &mut out);
        }
        progress.bits.check()?;
        Ok(progress.bits.position())
    }
}

/// The factors of a quantization table, in zigzag order.
pub(crate) fn factors(tables: &Tables, number: usize) -> Result<Zigzag<i16>, Error> {
    let divisors = tables.quantization[number].ok_or(Error::Damaged("a quantization table is missing"))?;
    Ok(crate::block::zigzag(&divisors.map(|divisor| divisor as i16)))
}

/// Runs code that shifts by many numbers: AVX2 comes with instructions for that.
#[inline(always)]
fn with_bits<T>(level: SimdLevel, run: impl FnOnce() -> T) -> T {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "bmi1,bmi2")]
    fn compiled<T>(run: impl FnOnce() -> T) -> T {
        run()
    }
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the proof of AVX2 is that of these too.
        SimdLevel::Avx2(_) | SimdLevel::Avx512(_) => unsafe { compiled(run) },
        #[cfg(target_arch = "aarch64")]
        SimdLevel::Neon => run(),
        SimdLevel::Plain => run(),
    }
}

#[inline(always)]
fn decode_mcu(
    sources: &[Source],
    progress: &mut Progress,
    transforms: &mut Transforms,
    rows: &Rows,
    mcu_column: usize,
) -> Result<(), Error> {
    for Source { component, plane, coding } in sources {
        let previous = &mut progress.previous[*component];
        for row in 0..plane.down {
            for column in 0..plane.across {
                let target = rows.target(*component, mcu_column * plane.across + column, row);
                if plane.edge == 1 {
                    let first = coding.skip(&mut progress.bits, previous)?;
                    transforms.fill(first, target);
                    continue;
                }
                if coding.decode(&mut progress.bits, previous, transforms.room(plane.edge))? {
                    transforms.push(target);
                } else {
                    transforms.push_flat(target);
                }
            }
        }
    }
    Ok(())
}

#[inline(always)]
fn skip_mcu(sources: &[Source], progress: &mut Progress) -> Result<(), Error> {
    for Source { component, plane, coding } in sources {
        for _ in 0..plane.down * plane.across {
            coding.skip(&mut progress.bits, &mut progress.previous[*component])?;
        }
    }
    Ok(())
}
