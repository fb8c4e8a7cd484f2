//! The passes with NEON, with the bits of the plain ones: along rows four taps at a time, across them 16 bytes.

use std::arch::aarch64::*;

use super::pass::Pass;
use super::plain;
use super::taps::Taps;
use super::{BITS, HALF};

/// Taps of a step, which reads 16 bytes for the 12 of its pixels.
const STEP: usize = 4;

/// Which bytes of a step become each pixel's three numbers of 32 bits. The fourth one is 0, as no byte has such a place.
const PIXELS: [[u8; 16]; STEP] = {
    let mut pixels = [[u8::MAX; 16]; STEP];
    let mut at = 0;
    while at < 3 * STEP {
        pixels[at / 3][at % 3 * 4] = at as u8;
        at += 1;
    }
    pixels
};

/// The weights of a pass in fours, the same number for each output. Missing positions have no weight.
#[derive(Default)]
pub(super) struct Fours {
    weights: Vec<[i32; STEP]>,
    /// Fours of an output.
    each: usize,
}

impl Fours {
    fn compute(&mut self, taps: &Taps) {
        let outputs = || (0..taps.outputs.len()).map(|output| taps.of(output).1);
        let most = outputs().map(<[i32]>::len).max().unwrap_or(0);
        self.each = most.div_ceil(STEP);
        self.weights.clear();
        for weights in outputs() {
            let weight = |at: usize| weights.get(at).copied().unwrap_or(0);
            self.weights.extend((0..self.each).map(|four| std::array::from_fn(|at| weight(STEP * four + at))));
        }
    }

    /// Those of output `i`.
    fn of(&self, i: usize) -> &[[i32; STEP]] {
        &self.weights[i * self.each..][..self.each]
    }
}

/// The pass along rows.
pub(super) fn horizontal(pass: &Pass, fours: &mut Fours, out: &mut [u8]) {
    let &Pass { from, stride, taps, row_bytes } = pass;
    fours.compute(taps);
    let (first, _) = taps.span();
    let start = |output: usize| (taps.outputs[output].0 - first) * 3;
    let reach = start(taps.outputs.len() - 1) + 12 * fours.each + 4;
    // Rows that are followed by enough bytes. The plain code takes the last ones.
    let readable = from.len().checked_sub(reach).map_or(0, |spare| spare / stride + 1);
    let rows = readable.min(out.len() / row_bytes);
    let (above, below) = out.split_at_mut(rows * row_bytes);
    for (y, out) in above.chunks_exact_mut(row_bytes).enumerate() {
        // SAFETY: `reach` bytes follow the beginning of the row. The last output begins last.
        unsafe { resize_row(from[y * stride..].as_ptr(), start, fours, out) };
    }
    let rest = from.get(rows * stride..).unwrap_or_default();
    plain::horizontal(&Pass { from: rest, ..*pass }, below);
}

/// SAFETY: a row begins at `from`. It has `12 * fours.each + 4` bytes from the last `start` on.
#[target_feature(enable = "neon")]
unsafe fn resize_row(from: *const u8, start: impl Fn(usize) -> usize, fours: &Fours, out: &mut [u8]) {
    // SAFETY: each array has sixteen bytes.
    let places = PIXELS.map(|places| unsafe { vld1q_u8(places.as_ptr()) });
    for (output, out) in out.as_chunks_mut::<3>().0.iter_mut().enumerate() {
        let start = start(output);
        let (mut even, mut odd) = (vdupq_n_s32(HALF), vdupq_n_s32(0));
        for (step, weights) in fours.of(output).iter().enumerate() {
            // SAFETY: the caller's promise, and there are four weights.
            let (bytes, weights) = unsafe { (vld1q_u8(from.add(start + 12 * step)), vld1q_s32(weights.as_ptr())) };
            let pixel = |at: usize| vreinterpretq_s32_u8(vqtbl1q_u8(bytes, places[at]));
            even = vmlaq_laneq_s32::<0>(even, pixel(0), weights);
            odd = vmlaq_laneq_s32::<1>(odd, pixel(1), weights);
            even = vmlaq_laneq_s32::<2>(even, pixel(2), weights);
            odd = vmlaq_laneq_s32::<3>(odd, pixel(3), weights);
        }
        let words = without_fraction(vaddq_s32(even, odd));
        let bytes = vreinterpret_u32_u8(vqmovn_u16(vcombine_u16(words, words)));
        let [red, green, blue, _] = vget_lane_u32::<0>(bytes).to_le_bytes();
        *out = [red, green, blue];
    }
}

/// Sums without their fractions, and not below 0.
#[inline]
#[target_feature(enable = "neon")]
fn without_fraction(sums: int32x4_t) -> uint16x4_t {
    vqmovun_s32(vshrq_n_s32::<{ BITS as i32 }>(sums))
}

/// Bytes of a step across rows.
const BLOCK: usize = 16;

/// The pass across rows.
pub(super) fn vertical(pass: &Pass, out: &mut [u8]) {
    let &Pass { from, stride, taps, row_bytes } = pass;
    if row_bytes < BLOCK {
        return plain::vertical(pass, out);
    }
    let (first, _) = taps.span();
    for (y, out) in out.chunks_exact_mut(row_bytes).enumerate() {
        let (start, weights) = taps.of(y);
        let rows = &from[(start - first) * stride..];
        assert!(rows.len() + stride >= weights.len() * stride + row_bytes);
        // SAFETY: the rows have been checked.
        unsafe { mix_rows(rows.as_ptr(), stride, weights, out) };
    }
}

/// The weighted sum of rows.
///
/// SAFETY: for each weight a row of as many bytes as `out` begins `stride` bytes after the one before it, the first at `from`.
#[target_feature(enable = "neon")]
unsafe fn mix_rows(from: *const u8, stride: usize, weights: &[i32], out: &mut [u8]) {
    // The last step overlaps the one before it.
    let end = out.len() - BLOCK;
    for at in (0..end).step_by(BLOCK).chain([end]) {
        let mut sums = [vdupq_n_s32(HALF); 4];
        for (row, &weight) in weights.iter().enumerate() {
            // SAFETY: the caller's promise.
            let bytes = unsafe { vld1q_u8(from.add(row * stride + at)) };
            let left = vmovl_u8(vget_low_u8(bytes));
            let right = vmovl_high_u8(bytes);
            let [a, b] = [left, right].map(|words| [vmovl_u16(vget_low_u16(words)), vmovl_high_u16(words)]);
            for (sum, bytes) in sums.iter_mut().zip([a[0], a[1], b[0], b[1]]) {
                *sum = vmlaq_n_s32(*sum, vreinterpretq_s32_u32(bytes), weight);
            }
        }
        let [a, b, c, d] = sums.map(|sums| without_fraction(sums));
        let bytes = vcombine_u8(vqmovn_u16(vcombine_u16(a, b)), vqmovn_u16(vcombine_u16(c, d)));
        // SAFETY: 16 bytes follow `at`.
        unsafe { vst1q_u8(out.as_mut_ptr().add(at), bytes) };
    }
}
