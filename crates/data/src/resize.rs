//! Antialiased bilinear resize of RGB pictures: Pillow's algorithm with the same bits, which torchvision also uses.
//!
//! Two passes, along rows and across them, each rounded to bytes; weights are fixed-point numbers of 22 bits. Pillow
//! does the same (`Resample.c`), so rounding cannot differ. Weights of the triangle filter are never negative, so sums
//! need no sign.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod taps;

/// What the pass along rows prepares for vectors: nothing on this machine.
#[cfg(not(target_arch = "x86_64"))]
type Steps = ();

#[cfg(target_arch = "x86_64")]
use avx2::Steps;
use taps::{Axis, Taps};

use crate::refit::refit;
use crate::{CropBox, Picture, Stretch, View};

pub(crate) use taps::span;

/// Fractional bits of a weight: a sum of byte · weight stays below 2^31.
const BITS: u32 = 22;
const HALF: u32 = 1 << (BITS - 1);

/// Resizes pictures; keeps its scratch memory between calls.
#[derive(Default)]
pub struct Resizer {
    /// The result of the first pass.
    between: Vec<u8>,
    columns: Taps,
    steps: Steps,
    rows: Taps,
    /// A picture that is padded afterwards.
    pub(crate) unpadded: Vec<u8>,
}

impl Resizer {
    /// A resizer without scratch memory so far.
    pub fn new() -> Self {
        Self::default()
    }

    /// Crops `from` to `crop` and resizes that to `width` × `height` into `out` (`width * height * 3` bytes).
    ///
    /// As in Pillow, pixels outside the crop have no influence, and an axis that keeps its length is copied exactly.
    ///
    /// # Panics
    /// If `crop` leaves the picture, `out` has another length, or without memory.
    pub fn resize(&mut self, from: &Picture, crop: CropBox, width: usize, height: usize, out: &mut [u8]) {
        self.resize_part(from, crop, (width, height), CropBox::whole(width, height), out);
    }

    /// The part `part` of the result of [`resize`](Resizer::resize) of `crop` to the dimensions `full`, without
    /// computing the rest. `out` has `part.width * part.height * 3` bytes.
    ///
    /// # Panics
    /// If `crop` leaves the picture, `part` leaves `full`, `out` has another length, or without memory.
    pub fn resize_part(&mut self, from: &Picture, crop: CropBox, full: (usize, usize), part: CropBox, out: &mut [u8]) {
        assert!(crop.fits(from.width(), from.height()), "{crop:?} leaves {}x{}", from.width(), from.height());
        self.exactly(from, (0, 0), &Stretch { crop, full, part }, out);
    }

    /// The result of `stretch` for the picture of which `view` holds what is needed, in `out` (three bytes for each pixel of its
    /// part).
    ///
    /// # Panics
    /// If the stretch leaves the picture, `out` has another length, or without memory.
    pub fn stretch(&mut self, view: &View, stretch: &Stretch, out: &mut [u8]) {
        if view.shrink == 1 {
            return self.exactly(&view.picture, (view.left, view.top), stretch, out);
        }
        // The crop has edges between the pixels of the shrunk picture. Beyond these pixels nothing has an influence.
        let Stretch { crop, full, part } = *stretch;
        let shrunk = |length: usize| length as f64 / view.shrink as f64;
        let axis = |start: usize, length: usize, skipped: usize, limit: usize, full: usize| Axis {
            from: shrunk(start) - skipped as f64,
            length: shrunk(length),
            limit,
            full,
        };
        let columns = axis(crop.left, crop.width, view.left, view.picture.width(), full.0);
        let rows = axis(crop.top, crop.height, view.top, view.picture.height(), full.1);
        self.columns.compute(&columns, part.left, part.width);
        self.rows.compute(&rows, part.top, part.height);
        let order = vertical_first((crop.width / view.shrink, crop.height / view.shrink), full);
        self.passes(&view.picture, self.columns.span().0, self.rows.span().0, order, part, out);
    }

    /// The result of `stretch` for a picture of which `from` lacks columns on the left and rows above.
    fn exactly(&mut self, from: &Picture, lacking: (usize, usize), stretch: &Stretch, out: &mut [u8]) {
        let Stretch { crop, full, part } = *stretch;
        assert!(part.fits(full.0, full.1), "{part:?} leaves {full:?}");
        self.columns.compute(&Axis::whole(crop.width, full.0), part.left, part.width);
        self.rows.compute(&Axis::whole(crop.height, full.1), part.top, part.height);
        let (left, top) = (crop.left + self.columns.span().0 - lacking.0, crop.top + self.rows.span().0 - lacking.1);
        self.passes(from, left, top, vertical_first((crop.width, crop.height), full), part, out);
    }

    /// Both passes, from the pixels of `from` right of `left` and below `top`.
    fn passes(&mut self, from: &Picture, left: usize, top: usize, vertical_first: bool, part: CropBox, out: &mut [u8]) {
        assert_eq!(out.len(), part.width * part.height * 3);
        let (first_column, end_column) = self.columns.span();
        let (first_row, end_row) = self.rows.span();
        let stride = from.width() * 3;
        let source = &from.pixels()[top * stride + left * 3..];
        if vertical_first {
            let row_bytes = (end_column - first_column) * 3;
            self.refit_between(part.height * row_bytes);
            vertical(source, stride, &self.rows, &mut self.between, row_bytes);
            horizontal(&self.between, row_bytes, &self.columns, &mut self.steps, out, part.width * 3);
        } else {
            let row_bytes = part.width * 3;
            self.refit_between((end_row - first_row) * row_bytes);
            horizontal(source, stride, &self.columns, &mut self.steps, &mut self.between, row_bytes);
            vertical(&self.between, row_bytes, &self.rows, out, row_bytes);
        }
    }

    fn refit_between(&mut self, length: usize) {
        refit(&mut self.between, length).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// The order of the passes makes a difference of up to two levels. Since version 13 Pillow runs the pass across rows
/// first if that saves much; earlier versions never do.
fn vertical_first(crop: (usize, usize), full: (usize, usize)) -> bool {
    let saved = |source: usize, target: usize| source as i64 - target as i64;
    saved(crop.1, full.1) > (2 * saved(crop.0, full.0)).max(0)
}

/// The pass along rows: from `from`, whose rows begin `stride` bytes apart, to the rows of `out`. Both begin at the
/// first column of `columns`.
fn horizontal(from: &[u8], stride: usize, columns: &Taps, steps: &mut Steps, out: &mut [u8], row_bytes: usize) {
    let rows = from.chunks(stride).zip(out.chunks_exact_mut(row_bytes));
    if columns.copies {
        return rows.for_each(|(row, out)| out.copy_from_slice(&row[..row_bytes]));
    }
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { avx2::horizontal(from, stride, columns, steps, out, row_bytes) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let () = *steps;
    rows.for_each(|(row, out)| resize_row(row, columns, out));
}

/// The pass across rows.
fn vertical(from: &[u8], stride: usize, rows: &Taps, out: &mut [u8], row_bytes: usize) {
    let (first, _) = rows.span();
    for (y, out) in out.chunks_exact_mut(row_bytes).enumerate() {
        let (start, weights) = rows.of(y);
        let from = &from[(start - first) * stride..];
        if rows.copies {
            out.copy_from_slice(&from[..row_bytes]);
        } else {
            mix_rows(from, stride, weights, out);
        }
    }
}

/// One row through the column pass. Two channels share a 64-bit product: their sums stay below 2^32.
fn resize_row(row: &[u8], columns: &Taps, out: &mut [u8]) {
    let (pixels, _) = row.as_chunks::<3>();
    let (outputs, _) = out.as_chunks_mut::<3>();
    let (skipped, _) = columns.span();
    let mut begin = 0;
    for (&(first, end), out) in columns.outputs.iter().zip(outputs) {
        let weights = &columns.weights[begin..end];
        begin = end;
        let mut red_green = u64::from(HALF) << 32 | u64::from(HALF);
        let mut blue = HALF;
        for (&[r, g, b], &weight) in pixels[first - skipped..].iter().zip(weights) {
            red_green += (u64::from(g) << 32 | u64::from(r)) * u64::from(weight);
            blue += u32::from(b) * weight;
        }
        *out = [to_byte(red_green as u32), to_byte((red_green >> 32) as u32), to_byte(blue)];
    }
}

/// The weighted sum of rows that begin `stride` bytes apart.
fn mix_rows(rows: &[u8], stride: usize, weights: &[u32], out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { mix_rows_avx2(rows, stride, weights, out) };
    }
    mix_rows_plain(rows, stride, weights, out);
}

/// The plain twin, compiled for AVX2: integer arithmetic, so the bits are the same.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn mix_rows_avx2(rows: &[u8], stride: usize, weights: &[u32], out: &mut [u8]) {
    mix_rows_plain(rows, stride, weights, out);
}

#[inline(always)]
fn mix_rows_plain(rows: &[u8], stride: usize, weights: &[u32], out: &mut [u8]) {
    /// Number of sums that stay in registers while all rows are added.
    const BLOCK: usize = 32;
    let width = out.len();
    let (blocks, rest) = out.as_chunks_mut::<BLOCK>();
    for (i, block) in blocks.iter_mut().enumerate() {
        let mut sums = [HALF; BLOCK];
        for (row, &weight) in rows.chunks(stride).zip(weights) {
            let bytes: &[u8; BLOCK] = &row.as_chunks().0[i];
            for (sum, &byte) in sums.iter_mut().zip(bytes) {
                *sum += u32::from(byte) * weight;
            }
        }
        *block = sums.map(to_byte);
    }
    let start = width - rest.len();
    for (x, out) in rest.iter_mut().enumerate() {
        let column = rows[start + x..].iter().step_by(stride);
        *out = to_byte(column.zip(weights).fold(HALF, |sum, (&byte, &weight)| sum + u32::from(byte) * weight));
    }
}

/// A sum without its fraction. Rounded weights may add up to slightly more than 1.
#[inline(always)]
fn to_byte(sum: u32) -> u8 {
    (sum >> BITS).min(255) as u8
}
