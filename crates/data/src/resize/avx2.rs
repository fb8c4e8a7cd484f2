//! The pass along rows with AVX2: two rows at a time, with the bits of the plain pass.
//!
//! A weight has 22 bits, and products of numbers of 16 bits are fastest. So a weight is split into 8 high and 15 low bits, whose
//! sums are put together at the end.

use std::arch::x86_64::*;

use super::taps::Taps;
use super::{BITS, HALF, resize_row};

/// Bits of the lower part of a weight.
const LOW: u32 = 15;

/// The weights of four neighbouring pixels: low parts of the first two, high parts of them, and the same of the other two. Two
/// parts make a word.
type Weights = [i32; 4];

/// The taps of a pass in steps of four pixels, the same number for each output. Missing pixels have no weight.
#[derive(Default)]
pub(super) struct Steps {
    /// The first byte of each output's pixels in a row.
    starts: Vec<usize>,
    weights: Vec<Weights>,
    /// Steps of an output.
    each: usize,
}

impl Steps {
    fn compute(&mut self, columns: &Taps) {
        let (first, _) = columns.span();
        let outputs = || (0..columns.outputs.len()).map(|output| columns.of(output));
        self.starts.clear();
        self.starts.extend(outputs().map(|(start, _)| (start - first) * 3));
        self.each = outputs().map(|(_, weights)| weights.len().div_ceil(4)).max().unwrap_or(0);
        self.weights.clear();
        for (_, weights) in outputs() {
            let weight = |at: usize| weights.get(at).copied().unwrap_or(0);
            let word = |first: u32, second: u32| (first | second << 16) as i32;
            let low = |at: usize| word(weight(at) % (1 << LOW), weight(at + 1) % (1 << LOW));
            let high = |at: usize| word(weight(at) >> LOW, weight(at + 1) >> LOW);
            let steps = (0..self.each).map(|step| 4 * step);
            self.weights.extend(steps.map(|at| [low(at), high(at), low(at + 2), high(at + 2)]));
        }
    }

    /// Bytes of a row that are read from its first one on: a step reads 16 for 12.
    fn reach(&self) -> usize {
        self.starts.iter().max().map_or(0, |start| start + 12 * self.each + 4)
    }
}

/// `super::horizontal`.
#[target_feature(enable = "avx2")]
pub(super) fn horizontal(
    from: &[u8],
    stride: usize,
    columns: &Taps,
    steps: &mut Steps,
    out: &mut [u8],
    row_bytes: usize,
) {
    steps.compute(columns);
    // Rows that are followed by enough bytes. The plain code takes the last ones.
    let readable = from.len().checked_sub(steps.reach()).map_or(0, |spare| spare / stride + 1);
    let rows = readable.min(out.len() / row_bytes) / 2 * 2;
    let (above, below) = out.split_at_mut(rows * row_bytes);
    for (y, out) in above.chunks_exact_mut(2 * row_bytes).enumerate() {
        let from = from[2 * y * stride..].as_ptr();
        let (upper, lower) = out.split_at_mut(row_bytes);
        // SAFETY: `reach` bytes follow the beginnings of both rows.
        unsafe {
            match steps.each {
                1 => two_rows(from, stride, steps, 1, [upper, lower]),
                2 => two_rows(from, stride, steps, 2, [upper, lower]),
                each => two_rows(from, stride, steps, each, [upper, lower]),
            }
        }
    }
    let rest = from.get(rows * stride..).unwrap_or_default();
    for (row, out) in rest.chunks(stride).zip(below.chunks_exact_mut(row_bytes)) {
        resize_row(row, columns, out);
    }
}

/// SAFETY: two rows of [`Steps::reach`] bytes begin at `from` and `stride` bytes later.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn two_rows(from: *const u8, stride: usize, steps: &Steps, each: usize, [upper, lower]: [&mut [u8]; 2]) {
    // Two pixels as pairs of numbers of 16 bits: red and red, green and green, blue and blue.
    let first_two = _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1);
    let other_two = _mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
    let first_two = _mm256_broadcastsi128_si256(first_two);
    let other_two = _mm256_broadcastsi128_si256(other_two);
    // Red, green and blue of an output, of the upper row in the lower half.
    let sums = |start: usize, weights: &[Weights]| {
        let (mut low, mut high) = (_mm256_set1_epi32(HALF as i32), _mm256_setzero_si256());
        for (step, [low_first, high_first, low_other, high_other]) in weights.iter().enumerate() {
            // SAFETY: the caller's promise.
            let pixels = unsafe {
                let at = from.add(start + 12 * step);
                _mm256_set_m128i(_mm_loadu_si128(at.add(stride).cast()), _mm_loadu_si128(at.cast()))
            };
            let (first, other) = (_mm256_shuffle_epi8(pixels, first_two), _mm256_shuffle_epi8(pixels, other_two));
            let times = |pixels: __m256i, weights: &i32| _mm256_madd_epi16(pixels, _mm256_set1_epi32(*weights));
            low = _mm256_add_epi32(low, _mm256_add_epi32(times(first, low_first), times(other, low_other)));
            high = _mm256_add_epi32(high, _mm256_add_epi32(times(first, high_first), times(other, high_other)));
        }
        let sums = _mm256_add_epi32(low, _mm256_slli_epi32::<{ LOW as i32 }>(high));
        _mm256_srli_epi32::<{ BITS as i32 }>(sums)
    };
    let without_fourth =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 4, 5, 6, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
    let (twos, last) = steps.starts.as_chunks::<2>();
    let (weights_of_twos, weights_of_last) = steps.weights.split_at(twos.len() * 2 * each);
    // Two outputs, six bytes of which are stored with two more, which the next ones overwrite.
    let store = |at: usize, pixels: __m256i, rows: [&mut [u8]; 2]| {
        let bytes = _mm256_shuffle_epi8(_mm256_packus_epi16(pixels, pixels), without_fourth);
        let halves = [_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes)];
        for (row, half) in rows.into_iter().zip(halves) {
            let eight = _mm_cvtsi128_si64(half).to_le_bytes();
            let row = &mut row[at..];
            match row.first_chunk_mut() {
                Some(room) => *room = eight,
                None => {
                    let length = row.len();
                    row.copy_from_slice(&eight[..length]);
                }
            }
        }
    };
    for (two, (&[left, right], weights)) in twos.iter().zip(weights_of_twos.chunks_exact(2 * each)).enumerate() {
        let (weights_left, weights_right) = weights.split_at(each);
        let pixels = _mm256_packus_epi32(sums(left, weights_left), sums(right, weights_right));
        store(6 * two, pixels, [&mut *upper, &mut *lower]);
    }
    if let [start] = last {
        let sums = sums(*start, weights_of_last);
        store(6 * twos.len(), _mm256_packus_epi32(sums, sums), [upper, lower]);
    }
}
