//! Both passes in plain Rust.

use super::pass::Pass;
use super::taps::Taps;
use super::{BITS, HALF};

/// The pass along rows.
pub(super) fn horizontal(pass: &Pass, out: &mut [u8]) {
    for (row, out) in pass.from.chunks(pass.stride).zip(out.chunks_exact_mut(pass.row_bytes)) {
        resize_row(row, pass.taps, out);
    }
}

/// One row. Two channels share a 64-bit product: their sums have 32 bits each. A negative red one takes 1 from the green one.
fn resize_row(row: &[u8], columns: &Taps, out: &mut [u8]) {
    let (pixels, _) = row.as_chunks::<3>();
    let (outputs, _) = out.as_chunks_mut::<3>();
    let (skipped, _) = columns.span();
    let mut begin = 0;
    for (&(first, end), out) in columns.outputs.iter().zip(outputs) {
        let weights = &columns.weights[begin..end];
        begin = end;
        let mut red_green = i64::from(HALF) << 32 | i64::from(HALF);
        let mut blue = HALF;
        for (&[r, g, b], &weight) in pixels[first - skipped..].iter().zip(weights) {
            red_green += (i64::from(g) << 32 | i64::from(r)) * i64::from(weight);
            blue += i32::from(b) * weight;
        }
        let red = red_green as i32;
        let green = ((red_green - i64::from(red)) >> 32) as i32;
        *out = [to_byte(red), to_byte(green), to_byte(blue)];
    }
}

/// The pass across rows.
pub(super) fn vertical(pass: &Pass, out: &mut [u8]) {
    let (first, _) = pass.taps.span();
    for (y, out) in out.chunks_exact_mut(pass.row_bytes).enumerate() {
        let (start, weights) = pass.taps.of(y);
        mix_rows(&pass.from[(start - first) * pass.stride..], pass.stride, weights, out);
    }
}

/// The weighted sum of rows that begin `stride` bytes apart.
fn mix_rows(rows: &[u8], stride: usize, weights: &[i32], out: &mut [u8]) {
    /// Number of sums that stay in registers while all rows are added.
    const BLOCK: usize = 32;
    let width = out.len();
    let (blocks, rest) = out.as_chunks_mut::<BLOCK>();
    for (i, block) in blocks.iter_mut().enumerate() {
        let mut sums = [HALF; BLOCK];
        for (row, &weight) in rows.chunks(stride).zip(weights) {
            let bytes: &[u8; BLOCK] = &row.as_chunks().0[i];
            for (sum, &byte) in sums.iter_mut().zip(bytes) {
                *sum += i32::from(byte) * weight;
            }
        }
        *block = sums.map(to_byte);
    }
    let start = width - rest.len();
    for (x, out) in rest.iter_mut().enumerate() {
        let column = rows[start + x..].iter().step_by(stride);
        *out = to_byte(column.zip(weights).fold(HALF, |sum, (&byte, &weight)| sum + i32::from(byte) * weight));
    }
}

/// A sum without its fraction. Rounded weights may add up to slightly more than 1, and bicubic ones reach beyond both ends.
#[inline(always)]
fn to_byte(sum: i32) -> u8 {
    (sum >> BITS).clamp(0, 255) as u8
}
