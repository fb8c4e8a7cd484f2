//! From samples to rows of RGB pixels: upsampling and conversion of colours, as soon as a row of MCUs has been decoded.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "aarch64")]
mod neon;
mod plain;

use enmasse_system::simd::SimdLevel;

use crate::buffer::fit;
use crate::header::MAX_COMPONENTS;
use crate::layout::{Layout, Plane, Upsampling};
use crate::transform::Target;
use crate::{Color, Error};

/// Room beside each row of samples, so that the neighbours of the first and the last one exist.
const BESIDE: usize = 32;

/// The samples of one component that are needed, for one row of MCUs and the row of samples above it.
#[derive(Clone, Copy, Debug)]
struct Area {
    plane: Plane,
    /// Index of the first sample of the row above.
    start: usize,
    stride: usize,
    /// Samples that a row has, up to the end of the needed MCUs or of the image.
    width: usize,
}

/// Makes rows of pixels.
#[derive(Debug)]
pub(crate) struct Rows<'a> {
    layout: &'a Layout,
    areas: [Area; MAX_COMPONENTS],
    level: SimdLevel,
    color: Color,
    /// The next row of the region, in the image.
    next: usize,
}

/// Memory for the samples of a row of MCUs and for a row of each component at the image's width.
#[derive(Debug, Default)]
pub(crate) struct Strip {
    pub samples: Vec<u8>,
    wide: [Vec<u8>; MAX_COMPONENTS],
}

impl Strip {
    /// Makes room for `rows`.
    pub fn fit(&mut self, rows: &Rows) -> Result<(), Error> {
        let (samples, wide) = rows.bytes();
        fit(&mut self.samples, samples, 0)?;
        self.wide[..rows.layout.count].iter_mut().try_for_each(|row| fit(row, wide, 0))
    }

    /// Bytes that it holds.
    pub fn held(&self) -> usize {
        self.samples.capacity() + self.wide.iter().map(Vec::capacity).sum::<usize>()
    }
}

impl<'a> Rows<'a> {
    pub fn new(layout: &'a Layout, color: Color, level: SimdLevel) -> Self {
        let mcus = layout.end_column - layout.first_column;
        let mut start = BESIDE;
        let areas = layout.planes.map(|plane| {
            let width = mcus * plane.across * plane.edge;
            let stride = width + 2 * BESIDE;
            let first = layout.first_column * plane.across * plane.edge;
            let area = Area { plane, start, stride, width: width.min(plane.width.saturating_sub(first)) };
            start += stride * (1 + plane.down * plane.edge);
            area
        });
        Rows { layout, areas, level, color, next: layout.region.top }
    }

    /// Bytes of the samples and of each of the wide rows.
    pub fn bytes(&self) -> (usize, usize) {
        let areas = &self.areas[..self.layout.count];
        let samples = areas.iter().map(|area| area.stride * (1 + area.plane.down * area.plane.edge)).sum::<usize>();
        let mcus = self.layout.end_column - self.layout.first_column;
        (samples + 2 * BESIDE, mcus * self.layout.mcu_width + 2 * BESIDE)
    }

    /// Where the samples of a block go: that of component `component` in column `column` of the image's blocks and row `row` of
    /// those of its MCU.
    #[inline(always)]
    pub fn target(&self, component: usize, column: usize, row: usize) -> Target {
        let Area { plane, start, stride, .. } = &self.areas[component];
        let column = column - self.layout.first_column * plane.across;
        Target { at: start + (1 + row * plane.edge) * stride + column * plane.edge, stride: *stride, edge: plane.edge }
    }

    /// Makes the rows of the region that are complete once row `mcu_row` of the MCUs is, and appends them to `out`.
    pub fn make(&mut self, mcu_row: usize, strip: &mut Strip, out: &mut impl Iterator<Item = &'a mut [u8]>) {
        let layout = self.layout;
        let areas = &self.areas[..layout.count];
        for area in areas.iter().filter(|area| matches!(area.plane.upsampling, Upsampling::Columns | Upsampling::Both))
        {
            for row in 1..=area.plane.down * area.plane.edge {
                extend(&mut strip.samples[area.start + row * area.stride - 1..][..area.width + 2]);
            }
        }
        let complete = if mcu_row + 1 == layout.end_row {
            layout.region.top + layout.region.height
        } else {
            let waits = areas.iter().any(|area| area.plane.upsampling.mixes_rows());
            (mcu_row + 1) * layout.mcu_height - usize::from(waits)
        };
        let left = layout.region.left - layout.first_column * layout.mcu_width;
        for y in self.next..complete {
            let Some(out) = out.next() else { return };
            let Strip { samples, wide } = &mut *strip;
            for (area, wide) in areas.iter().zip(wide.iter_mut()) {
                self.upsample(area, mcu_row, y, samples, wide);
            }
            let row = |component: usize| {
                let area = &areas[component];
                let from = match area.plane.upsampling {
                    Upsampling::None => &samples[area.at(mcu_row, y)..],
                    _ => &wide[component],
                };
                &from[left..][..layout.region.width]
            };
            match self.color {
                Color::Gray => gray(row(0), out),
                Color::YCbCr => ycc_to_rgb(self.level, [row(0), row(1), row(2)], out),
                Color::Rgb => interleave(self.level, [row(0), row(1), row(2)], out),
                Color::Cmyk => {
                    interleave(self.level, [row(0), row(1), row(2)], out);
                    out.iter_mut().for_each(|ink| *ink = 255 - *ink);
                    print(row(3), out);
                }
                Color::Ycck => {
                    ycc_to_rgb(self.level, [row(0), row(1), row(2)], out);
                    print(row(3), out);
                }
            }
        }
        self.next = self.next.max(complete);
        for area in areas {
            let last = area.start + area.plane.down * area.plane.edge * area.stride;
            strip.samples.copy_within(last - 1..last + area.width + 1, area.start - 1);
        }
    }

    /// Brings a component's samples for row `y` of pixels to their width, unless that is theirs.
    fn upsample(&self, area: &Area, mcu_row: usize, y: usize, samples: &[u8], wide: &mut [u8]) {
        let Area { plane, width, .. } = *area;
        // With a neighbour on either side.
        let row = |y: usize| &samples[area.at(mcu_row, y) - 1..][..width + 2];
        let near = y / plane.upsampling.factors().1;
        let far = if y % 2 == 1 { (near + 1).min(plane.height - 1) } else { near.saturating_sub(1) };
        match plane.upsampling {
            Upsampling::None => {}
            Upsampling::Replicate { across, .. } => {
                for (pixels, sample) in wide.chunks_exact_mut(across).zip(&row(near)[1..=width]) {
                    pixels.fill(*sample);
                }
            }
            Upsampling::Columns => columns(self.level, row(near), wide),
            Upsampling::Rows => rows(self.level, [row(near), row(far)], 1 + (y % 2) as u16, wide),
            Upsampling::Both => both(self.level, [row(near), row(far)], wide),
        }
    }
}

impl Area {
    /// Index of the first sample of row `row` of the component's, while row `mcu_row` of the MCUs is at hand.
    fn at(&self, mcu_row: usize, row: usize) -> usize {
        self.start + (row + 1 - mcu_row * self.plane.down * self.plane.edge) * self.stride
    }
}

/// Repeats the first and the last sample beside them, which gives the bits of libjpeg's special cases at the edges.
fn extend(row: &mut [u8]) {
    let last = row.len() - 1;
    row[0] = row[1];
    row[last] = row[last - 1];
}

fn gray(row: &[u8], out: &mut [u8]) {
    for (pixel, &sample) in out.as_chunks_mut::<3>().0.iter_mut().zip(row) {
        *pixel = [sample; 3];
    }
}

/// Colours from inks, and from black as it is stored, as Pillow converts them.
fn print(black: &[u8], out: &mut [u8]) {
    for (pixel, &light) in out.as_chunks_mut::<3>().0.iter_mut().zip(black) {
        *pixel = pixel.map(|ink| light - divided_by_255(ink, light));
    }
}

/// a · b / 255, rounded.
fn divided_by_255(a: u8, b: u8) -> u8 {
    let product = u32::from(a) * u32::from(b) + 128;
    (((product >> 8) + product) >> 8) as u8
}

/// The kernels of each level: a plain function, and the same code compiled for AVX2 (`compiled`) or one of its own
/// (`own`).
macro_rules! kernels {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        $(#[$doc])*
        fn $name(level: SimdLevel, $($argument: $type),*) {
            match level {
                #[cfg(target_arch = "x86_64")]
                SimdLevel::Avx512(has) => avx2::$name(has.avx2(), $($argument),*),
                #[cfg(target_arch = "x86_64")]
                SimdLevel::Avx2(has) => avx2::$name(has, $($argument),*),
                #[cfg(target_arch = "aarch64")]
                SimdLevel::Neon => neon::$name($($argument),*),
                SimdLevel::Plain => plain::$name($($argument),*),
            }
        }
    )*};
}

kernels! {
    /// Twice as many columns (`h2v1_fancy_upsample`). The row has a neighbour on either side.
    fn columns(row: &[u8], wide: &mut [u8]);
    /// A row between two (`h1v2_fancy_upsample`), the nearer one first. Both have a neighbour on either side, which is left out.
    fn rows(rows: [&[u8]; 2], bias: u16, wide: &mut [u8]);
    /// Twice as many columns of a row between two (`h2v2_fancy_upsample`), the nearer one first.
    fn both(rows: [&[u8]; 2], wide: &mut [u8]);
    /// Pixels from brightness and two differences of colour (`ycc_rgb_convert`).
    fn ycc_to_rgb(rows: [&[u8]; 3], out: &mut [u8]);
    /// Pixels from red, green and blue.
    fn interleave(rows: [&[u8]; 3], out: &mut [u8]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Kernel<'a> = &'a dyn Fn(SimdLevel, [&[u8]; 3], &mut [u8]);

    proptest! {
        #[test]
        fn levels_agree(width in 1usize..150, samples in prop::collection::vec(any::<u8>(), 3 * 152), bias in 1u16..3) {
            let best = SimdLevel::default();
            let plain = SimdLevel::Plain;
            let run = |level: SimdLevel, kernel: Kernel| {
                let mut out = vec![0; 3 * 150];
                let rows = [0, 1, 2].map(|row| &samples[row * 152..][..width + 2]);
                kernel(level, rows, &mut out);
                out
            };
            let check = |kernel: Kernel| {
                prop_assert_eq!(run(best, kernel), run(plain, kernel));
                Ok(())
            };
            check(&|level, [a, ..], out| columns(level, a, out))?;
            check(&|level, [a, b, _], out| rows(level, [a, b], bias, out))?;
            check(&|level, [a, b, _], out| both(level, [a, b], out))?;
            check(&|level, rows, out| ycc_to_rgb(level, rows.map(|row| &row[..width]), &mut out[..3 * width]))?;
            check(&|level, rows, out| interleave(level, rows.map(|row| &row[..width]), &mut out[..3 * width]))?;
        }
    }

    /// All 2^24 colours by the formula of JFIF in fixed numbers of 16 bits, as libjpeg's tables have them.
    #[test]
    fn colours_are_those_of_libjpeg() {
        let level = SimdLevel::default();
        let mut out = vec![0; 3 * 256];
        let brightness: Vec<u8> = (0..=255).collect();
        for cb in 0..=255u8 {
            for cr in (0..=255u8).step_by(if cb % 16 == 0 { 1 } else { 15 }) {
                ycc_to_rgb(level, [&brightness, &[cb; 256], &[cr; 256]], &mut out);
                let (b, r) = (i32::from(cb) - 128, i32::from(cr) - 128);
                let parts = [
                    (91_881 * r + 32_768) >> 16,
                    (-22_554 * b - 46_802 * r + 32_768) >> 16,
                    (116_130 * b + 32_768) >> 16,
                ];
                for (y, pixel) in (0..).zip(out.as_chunks::<3>().0) {
                    assert_eq!(*pixel, parts.map(|part| (y + part).clamp(0, 255) as u8), "{y} {cb} {cr}");
                }
            }
        }
    }
}
