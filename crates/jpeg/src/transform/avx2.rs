//! The transforms with AVX2: a vector has a row of each block.

use std::arch::x86_64::*;

use super::plain::{self, BITS};
use super::{Pair, Target};
use crate::level::Avx2;

/// Transforms both blocks of a pair, the second one first. `_has` proves that the processor has AVX2.
pub(super) fn inverse(_has: Avx2, pair: &Pair, targets: [Target; 2], samples: &mut [u8]) {
    for target in &targets {
        assert!(target.end() <= samples.len());
    }
    match targets[0].edge {
        // SAFETY: the processor has AVX2, and the targets lie in `samples`.
        8 => unsafe { inverse_8(pair, targets, samples) },
        // SAFETY: the same.
        4 => unsafe { inverse_4(pair, targets, samples) },
        _ => plain::inverse(pair, targets, samples),
    }
}

/// 32-bit sums for the lower and the upper half of each lane of eight.
#[derive(Clone, Copy)]
struct Wide(__m256i, __m256i);

impl Wide {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn plus(self, other: Wide) -> Wide {
        Wide(_mm256_add_epi32(self.0, other.0), _mm256_add_epi32(self.1, other.1))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn minus(self, other: Wide) -> Wide {
        Wide(_mm256_sub_epi32(self.0, other.0), _mm256_sub_epi32(self.1, other.1))
    }

    /// `x` times a power of two up to 16.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn shifted<const DOWN: i32>(x: __m256i) -> Wide {
        let zero = _mm256_setzero_si256();
        let up = |x| _mm256_srai_epi32::<DOWN>(x);
        Wide(up(_mm256_unpacklo_epi16(zero, x)), up(_mm256_unpackhi_epi16(zero, x)))
    }

    /// Divided by 2^SHIFT with rounding, and saturated to 16 bits.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn divided<const SHIFT: i32>(self) -> __m256i {
        let half = _mm256_set1_epi32(1 << (SHIFT - 1));
        let divide = |x| _mm256_srai_epi32::<SHIFT>(_mm256_add_epi32(x, half));
        _mm256_packs_epi32(divide(self.0), divide(self.1))
    }
}

/// Two vectors, number by number.
#[derive(Clone, Copy)]
struct Zipped(__m256i, __m256i);

impl Zipped {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn new(x: __m256i, y: __m256i) -> Zipped {
        Zipped(_mm256_unpacklo_epi16(x, y), _mm256_unpackhi_epi16(x, y))
    }

    /// `x · a + y · b`.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn mix(self, a: i16, b: i16) -> Wide {
        let factors = _mm256_set1_epi32(i32::from(a as u16) | i32::from(b) << 16);
        Wide(_mm256_madd_epi16(self.0, factors), _mm256_madd_epi16(self.1, factors))
    }
}

/// `plain::full`, for eight numbers of each block at once.
#[inline]
#[target_feature(enable = "avx2")]
fn full<const SHIFT: i32>(x: [__m256i; 8]) -> [__m256i; 8] {
    const DOWN: i32 = 16 - BITS as i32;
    let even = Zipped::new(x[2], x[6]);
    let (outer, inner) = (even.mix(10_703, 4433), even.mix(4433, -10_704));
    let sum = Wide::shifted::<DOWN>(_mm256_add_epi16(x[0], x[4]));
    let difference = Wide::shifted::<DOWN>(_mm256_sub_epi16(x[0], x[4]));
    let even = [sum.plus(outer), difference.plus(inner), difference.minus(inner), sum.minus(outer)];
    let odd = Zipped::new(_mm256_add_epi16(x[3], x[7]), _mm256_add_epi16(x[1], x[5]));
    let (a, b) = (odd.mix(-6436, 9633), odd.mix(9633, 6437));
    let (outer, inner) = (Zipped::new(x[1], x[7]), Zipped::new(x[3], x[5]));
    let odd = [
        outer.mix(4926, -7373).plus(b),
        inner.mix(4177, -20_995).plus(a),
        inner.mix(-20_995, -4176).plus(b),
        outer.mix(-7373, -4927).plus(a),
    ];
    [
        even[0].plus(odd[0]).divided::<SHIFT>(),
        even[1].plus(odd[1]).divided::<SHIFT>(),
        even[2].plus(odd[2]).divided::<SHIFT>(),
        even[3].plus(odd[3]).divided::<SHIFT>(),
        even[3].minus(odd[3]).divided::<SHIFT>(),
        even[2].minus(odd[2]).divided::<SHIFT>(),
        even[1].minus(odd[1]).divided::<SHIFT>(),
        even[0].minus(odd[0]).divided::<SHIFT>(),
    ]
}

/// `plain::half`, for eight numbers of each block at once.
#[inline]
#[target_feature(enable = "avx2")]
fn half<const SHIFT: i32>(x: [__m256i; 8]) -> [__m256i; 4] {
    let first = Wide::shifted::<{ 16 - BITS as i32 - 1 }>(x[0]);
    let second = Zipped::new(x[2], x[6]).mix(15_137, -6270);
    let (high, low) = (Zipped::new(x[7], x[5]), Zipped::new(x[3], x[1]));
    let odd =
        [high.mix(-4176, -4926).plus(low.mix(7373, 20_995)), high.mix(-1730, 11_893).plus(low.mix(-17_799, 8697))];
    let even = [first.plus(second), first.minus(second)];
    [
        even[0].plus(odd[0]).divided::<SHIFT>(),
        even[1].plus(odd[1]).divided::<SHIFT>(),
        even[1].minus(odd[1]).divided::<SHIFT>(),
        even[0].minus(odd[0]).divided::<SHIFT>(),
    ]
}

/// Swaps rows and columns of both blocks.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose(x: [__m256i; 8]) -> [__m256i; 8] {
    let low16 = |a: usize, b: usize| _mm256_unpacklo_epi16(x[a], x[b]);
    let high16 = |a: usize, b: usize| _mm256_unpackhi_epi16(x[a], x[b]);
    let (a0, a1, a2, a3) = (low16(0, 1), low16(2, 3), low16(4, 5), low16(6, 7));
    let (b0, b1, b2, b3) = (high16(0, 1), high16(2, 3), high16(4, 5), high16(6, 7));
    let quarters = [
        (_mm256_unpacklo_epi32(a0, a1), _mm256_unpacklo_epi32(a2, a3)),
        (_mm256_unpackhi_epi32(a0, a1), _mm256_unpackhi_epi32(a2, a3)),
        (_mm256_unpacklo_epi32(b0, b1), _mm256_unpacklo_epi32(b2, b3)),
        (_mm256_unpackhi_epi32(b0, b1), _mm256_unpackhi_epi32(b2, b3)),
    ];
    let low = |at: usize| _mm256_unpacklo_epi64(quarters[at].0, quarters[at].1);
    let high = |at: usize| _mm256_unpackhi_epi64(quarters[at].0, quarters[at].1);
    [low(0), high(0), low(1), high(1), low(2), high(2), low(3), high(3)]
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(pair: &Pair) -> [__m256i; 8] {
    // SAFETY: the pair is aligned to 32 bytes and has eight vectors.
    std::array::from_fn(|row| unsafe { _mm256_load_si256(pair.0.as_ptr().cast::<__m256i>().add(row)) })
}

/// SAFETY: the targets lie in `samples`.
#[target_feature(enable = "avx2")]
unsafe fn inverse_8(pair: &Pair, targets: [Target; 2], samples: &mut [u8]) {
    let columns = full::<18>(transpose(full::<11>(load(pair))));
    // Columns 0 and 4, 1 and 5, 2 and 6, 3 and 7.
    let packed: [__m256i; 4] = std::array::from_fn(|at| _mm256_packs_epi16(columns[at], columns[at + 4]));
    let (a, b) = (_mm256_unpacklo_epi8(packed[0], packed[1]), _mm256_unpackhi_epi8(packed[0], packed[1]));
    let (c, d) = (_mm256_unpacklo_epi8(packed[2], packed[3]), _mm256_unpackhi_epi8(packed[2], packed[3]));
    let (left_above, left_below) = (_mm256_unpacklo_epi16(a, c), _mm256_unpackhi_epi16(a, c));
    let (right_above, right_below) = (_mm256_unpacklo_epi16(b, d), _mm256_unpackhi_epi16(b, d));
    let rows = [
        _mm256_unpacklo_epi32(left_above, right_above),
        _mm256_unpackhi_epi32(left_above, right_above),
        _mm256_unpacklo_epi32(left_below, right_below),
        _mm256_unpackhi_epi32(left_below, right_below),
    ];
    let middle = _mm256_set1_epi8(-128);
    for (at, rows) in rows.into_iter().enumerate() {
        let rows = _mm256_xor_si256(rows, middle);
        let blocks = [_mm256_castsi256_si128(rows), _mm256_extracti128_si256::<1>(rows)];
        for (target, rows) in targets.into_iter().zip(blocks).rev() {
            // SAFETY: eight samples of rows 2 · at and 2 · at + 1 lie in `samples`.
            unsafe {
                let first = samples.as_mut_ptr().add(target.at + 2 * at * target.stride);
                _mm_storel_epi64(first.cast(), rows);
                _mm_storeh_pd(first.add(target.stride).cast(), _mm_castsi128_pd(rows));
            }
        }
    }
}

/// SAFETY: the targets lie in `samples`.
#[target_feature(enable = "avx2")]
unsafe fn inverse_4(pair: &Pair, targets: [Target; 2], samples: &mut [u8]) {
    let zero = _mm256_setzero_si256();
    let [r0, r1, r2, r3] = half::<12>(load(pair));
    let columns = half::<19>(transpose([r0, r1, r2, r3, zero, zero, zero, zero]));
    // Four samples of each column count, in the lower half of its lane.
    let (a, b) = (_mm256_unpacklo_epi64(columns[0], columns[1]), _mm256_unpacklo_epi64(columns[2], columns[3]));
    let order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    let rows = _mm256_shuffle_epi8(_mm256_packs_epi16(a, b), order);
    let rows = _mm256_xor_si256(rows, _mm256_set1_epi8(-128));
    let blocks = [_mm256_castsi256_si128(rows), _mm256_extracti128_si256::<1>(rows)];
    for (target, rows) in targets.into_iter().zip(blocks).rev() {
        let mut bytes = [0; 16];
        // SAFETY: the array has sixteen bytes.
        unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), rows) };
        for (at, row) in bytes.as_chunks::<4>().0.iter().enumerate() {
            samples[target.at + at * target.stride..][..4].copy_from_slice(row);
        }
    }
}
