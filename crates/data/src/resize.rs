//! Antialiased bilinear resize of RGB pictures: Pillow's algorithm with the same bits, which torchvision also uses.
//!
//! Two passes, along rows and across them, each rounded to bytes; weights are fixed-point numbers of 22 bits. Pillow
//! does the same (`Resample.c`), so rounding cannot differ. Weights of the triangle filter are never negative, so sums
//! need no sign.

use crate::refit::refit;
use crate::{CropBox, Picture};

/// Fractional bits of a weight: a sum of byte · weight stays below 2^31.
const BITS: u32 = 22;
const HALF: u32 = 1 << (BITS - 1);

/// Resizes pictures; keeps its scratch memory between calls.
#[derive(Default)]
pub struct Resizer {
    /// The result of the first pass.
    between: Vec<u8>,
    columns: Taps,
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
        assert!(part.fits(full.0, full.1), "{part:?} leaves {full:?}");
        assert_eq!(out.len(), part.width * part.height * 3);
        self.columns.compute(crop.width, full.0, part.left, part.width);
        self.rows.compute(crop.height, full.1, part.top, part.height);
        let (left, right) = self.columns.span();
        let (top, bottom) = self.rows.span();
        let stride = from.width() * 3;
        let source = &from.pixels()[(crop.top + top) * stride + (crop.left + left) * 3..];
        if vertical_first(crop, full) {
            let row_bytes = (right - left) * 3;
            self.refit_between(part.height * row_bytes);
            vertical(source, stride, &self.rows, &mut self.between, row_bytes);
            horizontal(&self.between, row_bytes, &self.columns, out, part.width * 3);
        } else {
            let row_bytes = part.width * 3;
            self.refit_between((bottom - top) * row_bytes);
            horizontal(source, stride, &self.columns, &mut self.between, row_bytes);
            vertical(&self.between, row_bytes, &self.rows, out, row_bytes);
        }
    }

    fn refit_between(&mut self, length: usize) {
        refit(&mut self.between, length).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// The order of the passes makes a difference of up to two levels. Since version 13 Pillow runs the pass across rows
/// first if that saves much; earlier versions never do.
fn vertical_first(crop: CropBox, full: (usize, usize)) -> bool {
    let saved = |source: usize, target: usize| source as i64 - target as i64;
    saved(crop.height, full.1) > (2 * saved(crop.width, full.0)).max(0)
}

/// The pass along rows: from `from`, whose rows begin `stride` bytes apart, to the rows of `out`. Both begin at the
/// first column of `columns`.
fn horizontal(from: &[u8], stride: usize, columns: &Taps, out: &mut [u8], row_bytes: usize) {
    let rows = from.chunks(stride).zip(out.chunks_exact_mut(row_bytes));
    if columns.copies {
        return rows.for_each(|(row, out)| out.copy_from_slice(&row[..row_bytes]));
    }
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

/// For each output position, the source positions that it reads, and their weights.
#[derive(Default)]
struct Taps {
    /// First source position, and end of the weights in `weights`.
    outputs: Vec<(usize, usize)>,
    weights: Vec<u32>,
    /// Whether the axis keeps its length.
    copies: bool,
}

impl Taps {
    /// Taps of outputs `start..start + count` of a resize from `source` to `full`.
    fn compute(&mut self, source: usize, full: usize, start: usize, count: usize) {
        self.outputs.clear();
        self.weights.clear();
        self.copies = source == full;
        if self.copies {
            self.weights.resize(count, 1 << BITS);
            self.outputs.extend((start..start + count).enumerate().map(|(i, at)| (at, i + 1)));
            return;
        }
        let scale = source as f64 / full as f64;
        let support = scale.max(1.0);
        for position in start..start + count {
            let center = (position as f64 + 0.5) * scale;
            // `as` truncates and saturates, as the C code's casts and comparisons do together.
            let first = (center - support + 0.5) as usize;
            let end = ((center + support + 0.5) as usize).min(source);
            let triangle = |at: usize| (1.0 - ((at as f64 - center + 0.5) * (1.0 / support)).abs()).max(0.0);
            let sum: f64 = (first..end).map(triangle).sum();
            let fixed = |weight: f64| (0.5 + weight / sum * f64::from(1 << BITS)) as u32;
            self.weights.extend((first..end).map(|at| fixed(triangle(at))));
            self.outputs.push((first, self.weights.len()));
        }
    }

    /// First source position, and weights, of output `i`.
    fn of(&self, i: usize) -> (usize, &[u32]) {
        let begin = if i == 0 { 0 } else { self.outputs[i - 1].1 };
        (self.outputs[i].0, &self.weights[begin..self.outputs[i].1])
    }

    /// The range of source positions that all outputs read: both ends increase with the outputs.
    fn span(&self) -> (usize, usize) {
        let (last, weights) = self.of(self.outputs.len() - 1);
        (self.outputs[0].0, last + weights.len())
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
