//! The passes with AVX-512, with the bits of the plain ones: along rows four rows and five outputs at a time, across them 64 bytes.

use std::arch::x86_64::*;

use enmasse_system::simd::Avx512;

use super::avx2;
use super::pairs::{LOW, Pair, Pairs, Rows};
use super::pass::Pass;
use super::{BITS, HALF};

/// Bytes of a vector.
const VECTOR: usize = 64;
/// Outputs whose fifteen sums fill a vector but for one.
const OUTPUTS: usize = 5;
/// Rows at a time.
const ROWS: usize = 4;

/// A word for each sum of a group of outputs.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Words([i32; 16]);

/// Neighbouring outputs, all of whose pixels lie in one vector of each row.
#[derive(Clone, Copy, Debug)]
struct Group {
    /// For each sum, the places of the first two numbers in that vector, as the first and the third byte of a word.
    places: Words,
    /// Where the vector begins in a row.
    from: usize,
}

/// The outputs of a pass along rows in groups.
#[derive(Default)]
pub(super) struct Groups {
    groups: Vec<Group>,
    /// The low and the high parts of each pair of weights, group by group.
    weights: Vec<[Words; 2]>,
}

impl Groups {
    /// Makes the groups. Returns whether the pixels of each lie in one vector.
    fn compute(&mut self, pass: &Pass, pairs: &Pairs) -> bool {
        let (first, end) = pass.taps.span();
        let Some(last) = (3 * (end - first)).checked_sub(VECTOR) else { return false };
        self.groups.clear();
        self.weights.clear();
        for (number, outputs) in pass.taps.outputs.chunks(OUTPUTS).enumerate() {
            let start = |at: usize| outputs[at].0 - first;
            if 3 * (start(outputs.len() - 1) + 2 * pairs.each - start(0)) > VECTOR {
                return false;
            }
            let from = (3 * start(0)).min(last);
            let mut places = Words([0; 16]);
            for (at, places) in places.0.as_chunks_mut::<3>().0[..outputs.len()].iter_mut().enumerate() {
                let red = (3 * start(at) - from) as i32;
                *places = [0, 1, 2].map(|color| (red + color) | (red + color + 3) << 16);
            }
            self.groups.push(Group { places, from });
            let begin = self.weights.len();
            self.weights.resize(begin + pairs.each, [Words([0; 16]); 2]);
            for at in 0..outputs.len() {
                for (words, weights) in self.weights[begin..].iter_mut().zip(pairs.of(OUTPUTS * number + at)) {
                    for (words, weights) in words.iter_mut().zip(weights) {
                        words.0[3 * at..][..3].fill(*weights);
                    }
                }
            }
        }
        true
    }
}

/// The pass along rows. Returns whether it was done: a row must be long enough, and the outputs near enough to each other.
pub(super) fn horizontal(_has: Avx512, pass: &Pass, pairs: &mut Pairs, groups: &mut Groups, out: &mut [u8]) -> bool {
    let &Pass { from, stride, taps, row_bytes } = pass;
    pairs.compute(taps, 1);
    if !groups.compute(pass, pairs) {
        return false;
    }
    let (first, end) = taps.span();
    assert!(from.len() >= (out.len() / row_bytes - 1) * stride + 3 * (end - first));
    for (number, out) in out.chunks_mut(ROWS * row_bytes).enumerate() {
        let from = from[ROWS * number * stride..].as_ptr();
        // SAFETY: the processor has AVX-512, and all rows have the bytes between the first and the last position of the taps.
        unsafe {
            match pairs.each {
                1 => four_rows(from, stride, groups, 1, out, row_bytes),
                2 => four_rows(from, stride, groups, 2, out, row_bytes),
                each => four_rows(from, stride, groups, each, out, row_bytes),
            }
        }
    }
    true
}

/// Makes up to four rows.
///
/// SAFETY: as many rows as `out` has begin `stride` bytes apart at `from`, and each has a vector from where any group begins.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")]
unsafe fn four_rows(from: *const u8, stride: usize, groups: &Groups, each: usize, out: &mut [u8], row_bytes: usize) {
    let count = out.len() / row_bytes;
    // Those that there are not are the last one once more.
    let row = |row: usize| row.min(count - 1) * stride;
    let rows = [row(0), row(1), row(2), row(3)];
    // SAFETY: any bits are a vector, and an array of 64 bytes has as many as one.
    let order = unsafe { _mm512_loadu_si512(IN_ROWS.as_ptr().cast()) };
    for (number, (group, weights)) in groups.groups.iter().zip(groups.weights.chunks_exact(each)).enumerate() {
        // SAFETY: the group has 16 aligned words.
        let places = unsafe { _mm512_load_si512(group.places.0.as_ptr().cast()) };
        let sums = |row: usize| {
            // SAFETY: the caller's promise.
            let bytes = unsafe { _mm512_loadu_si512(from.add(row + group.from).cast()) };
            let mut low = _mm512_set1_epi32(HALF);
            let mut high = _mm512_setzero_si512();
            let mut places = places;
            for [low_weights, high_weights] in weights {
                // Two colours of neighbouring pixels, as numbers of 16 bits.
                let pixels = _mm512_maskz_permutexvar_epi8(0x5555_5555_5555_5555, places, bytes);
                // SAFETY: 16 aligned words each.
                unsafe {
                    low = _mm512_dpwssd_epi32(low, pixels, _mm512_load_si512(low_weights.0.as_ptr().cast()));
                    high = _mm512_dpwssd_epi32(high, pixels, _mm512_load_si512(high_weights.0.as_ptr().cast()));
                }
                places = _mm512_add_epi8(places, _mm512_set1_epi8(6));
            }
            together(low, high)
        };
        let sums = [sums(rows[0]), sums(rows[1]), sums(rows[2]), sums(rows[3])];
        let pixels = _mm512_permutexvar_epi8(order, pack(sums));
        let quarters = [
            _mm512_castsi512_si128(pixels),
            _mm512_extracti32x4_epi32::<1>(pixels),
            _mm512_extracti32x4_epi32::<2>(pixels),
            _mm512_extracti32x4_epi32::<3>(pixels),
        ];
        let at = 3 * OUTPUTS * number;
        // The sixteenth byte is the next group's, which is written later.
        let room = if row_bytes - at >= 16 { u16::MAX } else { (1 << (row_bytes - at)) - 1 };
        for (row, pixels) in out.chunks_exact_mut(row_bytes).zip(quarters) {
            // SAFETY: of the sixteen bytes those are written that the row has.
            unsafe { _mm_mask_storeu_epi8(row[at..].as_mut_ptr().cast(), room, pixels) };
        }
    }
}

/// Where the bytes of four rows go that [`pack`] has made of sums: sixteen of each row.
const IN_ROWS: [u8; VECTOR] = {
    let mut order = [0; VECTOR];
    let mut at = 0;
    while at < VECTOR {
        let row = at / 16;
        let sum = at % 16;
        order[at] = (sum / 4 * 16 + row * 4 + sum % 4) as u8;
        at += 1;
    }
    order
};

/// Sums of low and of high parts as numbers without fraction.
#[inline]
#[target_feature(enable = "avx512f")]
fn together(low: __m512i, high: __m512i) -> __m512i {
    _mm512_srai_epi32::<BITS>(_mm512_add_epi32(low, _mm512_slli_epi32::<LOW>(high)))
}

/// Four vectors of numbers as bytes, of each vector four in turn. Numbers beyond 0 and 255 become these.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn pack([a, b, c, d]: [__m512i; 4]) -> __m512i {
    _mm512_packus_epi16(_mm512_packus_epi32(a, b), _mm512_packus_epi32(c, d))
}

/// The pass across rows.
pub(super) fn vertical(has: Avx512, pass: &Pass, pairs: &mut Pairs, out: &mut [u8]) {
    if pass.row_bytes < VECTOR {
        return avx2::vertical(has.avx2(), pass, pairs, out);
    }
    // SAFETY: the processor has AVX-512, and `mix_rows` reads what it is promised.
    unsafe { pairs.across(pass, out, mix_rows) }
}

/// The weighted sum of rows.
///
/// SAFETY: each has as many bytes as `out`.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn mix_rows(rows: &Rows, pairs: &[Pair], out: &mut [u8]) {
    let zero = _mm512_setzero_si512();
    // The last step overlaps the one before it.
    let end = out.len() - VECTOR;
    for at in (0..end).step_by(VECTOR).chain([end]) {
        let mut low = [_mm512_set1_epi32(HALF); 4];
        let mut high = [zero; 4];
        for (number, &[low_weights, high_weights]) in pairs.iter().enumerate() {
            let row = |row: usize| {
                // SAFETY: the caller's promise.
                unsafe { _mm512_loadu_si512(rows.at(row).add(at).cast()) }
            };
            let first = row(2 * number);
            let second = row(2 * number + 1);
            let left = _mm512_unpacklo_epi8(first, second);
            let right = _mm512_unpackhi_epi8(first, second);
            let words = [
                _mm512_unpacklo_epi8(left, zero),
                _mm512_unpackhi_epi8(left, zero),
                _mm512_unpacklo_epi8(right, zero),
                _mm512_unpackhi_epi8(right, zero),
            ];
            let weigh = |sums: [__m512i; 4], weights: i32| {
                let sum = |at: usize| _mm512_dpwssd_epi32(sums[at], words[at], _mm512_set1_epi32(weights));
                [sum(0), sum(1), sum(2), sum(3)]
            };
            (low, high) = (weigh(low, low_weights), weigh(high, high_weights));
        }
        let sum = |at: usize| together(low[at], high[at]);
        let bytes = pack([sum(0), sum(1), sum(2), sum(3)]);
        // SAFETY: 64 bytes follow `at`.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().add(at).cast(), bytes) };
    }
}
