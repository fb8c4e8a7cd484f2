//! The passes with AVX2, with the bits of the plain ones: along rows two rows at a time, across them 32 bytes.

use std::arch::x86_64::*;

use enmasse_system::simd::Avx2;

use super::pairs::{LOW, Pair, Pairs, Rows};
use super::pass::Pass;
use super::plain;
use super::{BITS, HALF};

/// Pairs of weights of a step along rows, which reads 16 bytes for the 12 of four pixels.
const STEP: usize = 2;

/// The pass along rows. `_has` proves that the processor has AVX2.
pub(super) fn horizontal(_has: Avx2, pass: &Pass, pairs: &mut Pairs, out: &mut [u8]) {
    let &Pass { from, stride, taps, row_bytes } = pass;
    pairs.compute(taps, STEP);
    let (first, _) = taps.span();
    let start = |output: usize| (taps.outputs[output].0 - first) * 3;
    let reach = start(taps.outputs.len() - 1) + 12 * pairs.each / STEP + 4;
    // Rows that are followed by enough bytes. The plain code takes the last ones.
    let readable = from.len().checked_sub(reach).map_or(0, |spare| spare / stride + 1);
    let rows = readable.min(out.len() / row_bytes) / 2 * 2;
    let (above, below) = out.split_at_mut(rows * row_bytes);
    for (y, out) in above.chunks_exact_mut(2 * row_bytes).enumerate() {
        let from = from[2 * y * stride..].as_ptr();
        let (upper, lower) = out.split_at_mut(row_bytes);
        // SAFETY: the processor has AVX2, and `reach` bytes follow the beginnings of both rows. The last output begins last.
        unsafe {
            match pairs.each {
                2 => two_rows(from, stride, start, pairs, 2, [upper, lower]),
                4 => two_rows(from, stride, start, pairs, 4, [upper, lower]),
                each => two_rows(from, stride, start, pairs, each, [upper, lower]),
            }
        }
    }
    let rest = from.get(rows * stride..).unwrap_or_default();
    plain::horizontal(&Pass { from: rest, ..*pass }, below);
}

/// SAFETY: two rows begin at `from` and `stride` bytes later. Each has `12 * each / STEP + 4` bytes from the last `start` on.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn two_rows(
    from: *const u8,
    stride: usize,
    start: impl Fn(usize) -> usize,
    pairs: &Pairs,
    each: usize,
    [upper, lower]: [&mut [u8]; 2],
) {
    // Two pixels as pairs of numbers of 16 bits: red and red, green and green, blue and blue.
    let first_two = _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1);
    let other_two = _mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
    let first_two = _mm256_broadcastsi128_si256(first_two);
    let other_two = _mm256_broadcastsi128_si256(other_two);
    // Red, green and blue of an output, of the upper row in the lower half.
    let sums = |output: usize| {
        let start = start(output);
        let mut low = _mm256_set1_epi32(HALF);
        let mut high = _mm256_setzero_si256();
        for (step, [[low_first, high_first], [low_other, high_other]]) in
            pairs.of(output)[..each].as_chunks::<STEP>().0.iter().enumerate()
        {
            // SAFETY: the caller's promise.
            let pixels = unsafe {
                let at = from.add(start + 12 * step);
                _mm256_set_m128i(_mm_loadu_si128(at.add(stride).cast()), _mm_loadu_si128(at.cast()))
            };
            let first = _mm256_shuffle_epi8(pixels, first_two);
            let other = _mm256_shuffle_epi8(pixels, other_two);
            let times = |pixels: __m256i, weights: &i32| _mm256_madd_epi16(pixels, _mm256_set1_epi32(*weights));
            low = _mm256_add_epi32(low, _mm256_add_epi32(times(first, low_first), times(other, low_other)));
            high = _mm256_add_epi32(high, _mm256_add_epi32(times(first, high_first), times(other, high_other)));
        }
        let sums = _mm256_add_epi32(low, _mm256_slli_epi32::<{ LOW as i32 }>(high));
        _mm256_srai_epi32::<{ BITS as i32 }>(sums)
    };
    let without_fourth =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 4, 5, 6, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
    let outputs = upper.len() / 3;
    for left in (0..outputs).step_by(2) {
        // The last one may be alone.
        let right = (left + 1).min(outputs - 1);
        let pixels = _mm256_packus_epi32(sums(left), sums(right));
        let bytes = _mm256_shuffle_epi8(_mm256_packus_epi16(pixels, pixels), without_fourth);
        let halves = [_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes)];
        // Six bytes are stored with two more, which the next ones overwrite.
        for (row, half) in [&mut *upper, &mut *lower].into_iter().zip(halves) {
            let eight = _mm_cvtsi128_si64(half).to_le_bytes();
            let row = &mut row[3 * left..];
            match row.first_chunk_mut() {
                Some(room) => *room = eight,
                None => {
                    let length = row.len();
                    row.copy_from_slice(&eight[..length]);
                }
            }
        }
    }
}

/// Bytes of a step across rows.
const BLOCK: usize = 32;

/// The pass across rows. `_has` proves that the processor has AVX2.
pub(super) fn vertical(_has: Avx2, pass: &Pass, pairs: &mut Pairs, out: &mut [u8]) {
    if pass.row_bytes < BLOCK {
        return plain::vertical(pass, out);
    }
    // SAFETY: the processor has AVX2, and `mix_rows` reads what it is promised.
    unsafe { pairs.across(pass, out, mix_rows) }
}

/// The weighted sum of rows.
///
/// SAFETY: each has as many bytes as `out`.
#[target_feature(enable = "avx2")]
unsafe fn mix_rows(rows: &Rows, pairs: &[Pair], out: &mut [u8]) {
    let zero = _mm256_setzero_si256();
    // The last step overlaps the one before it.
    let end = out.len() - BLOCK;
    for at in (0..end).step_by(BLOCK).chain([end]) {
        let mut low = [_mm256_set1_epi32(HALF); 4];
        let mut high = [zero; 4];
        for (number, &[low_weights, high_weights]) in pairs.iter().enumerate() {
            let row = |row: usize| {
                // SAFETY: the caller's promise.
                unsafe { _mm256_loadu_si256(rows.at(row).add(at).cast()) }
            };
            let first = row(2 * number);
            let second = row(2 * number + 1);
            let left = _mm256_unpacklo_epi8(first, second);
            let right = _mm256_unpackhi_epi8(first, second);
            let words = [
                _mm256_unpacklo_epi8(left, zero),
                _mm256_unpackhi_epi8(left, zero),
                _mm256_unpacklo_epi8(right, zero),
                _mm256_unpackhi_epi8(right, zero),
            ];
            let weigh = |sums: [__m256i; 4], weights: i32| {
                let product = |at: usize| _mm256_madd_epi16(words[at], _mm256_set1_epi32(weights));
                let sum = |at: usize| _mm256_add_epi32(sums[at], product(at));
                [sum(0), sum(1), sum(2), sum(3)]
            };
            (low, high) = (weigh(low, low_weights), weigh(high, high_weights));
        }
        let sum = |at: usize| {
            let sums = _mm256_add_epi32(low[at], _mm256_slli_epi32::<{ LOW as i32 }>(high[at]));
            _mm256_srai_epi32::<{ BITS as i32 }>(sums)
        };
        let bytes = _mm256_packus_epi16(_mm256_packus_epi32(sum(0), sum(1)), _mm256_packus_epi32(sum(2), sum(3)));
        // SAFETY: 32 bytes follow `at`.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().add(at).cast(), bytes) };
    }
}
