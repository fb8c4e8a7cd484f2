//! The transforms with AVX2: a vector has eight numbers of each block.

use std::arch::x86_64::*;

use enmasse_system::simd::Avx2;

use super::plain::{self, BITS};
use super::{Block, Group, Target};

/// Transforms the blocks of a group, and leaves zeros. `_has` proves that the processor has AVX2.
pub(super) fn inverse(_has: Avx2, group: &mut Group, targets: &[Target], samples: &mut [u8]) {
    for target in targets {
        assert!(target.end() <= samples.len());
    }
    match targets[0].edge {
        // SAFETY: the processor has AVX2, and the targets lie in `samples`.
        8 => unsafe { inverse_8(group, targets, samples) },
        // SAFETY: the same.
        4 => unsafe { inverse_4(group, targets, samples) },
        _ => plain::inverse(group, targets, samples),
    }
}

/// Two blocks at a time, and one target if the last block is alone.
fn in_twos<'a>(group: &'a Group, targets: &'a [Target]) -> impl Iterator<Item = (&'a [Block; 2], &'a [Target])> {
    group.0.as_chunks().0.iter().zip(targets.chunks(2))
}

/// Of each block four columns of rows 0 and 4, 2 and 6, 1 and 7, 5 and 3, or four rows of such columns.
type Pairs = [__m256i; 4];

/// Columns 0, 4, 2, 6 and columns 1, 7, 5, 3.
#[inline]
#[target_feature(enable = "avx2")]
fn load([first, second]: &[Block; 2]) -> [Pairs; 2] {
    let eight = |at: usize| {
        // SAFETY: eight numbers are sixteen bytes.
        let from = |block: &Block| unsafe { _mm_loadu_si128(block[at * 8..][..8].as_ptr().cast()) };
        _mm256_set_m128i(from(second), from(first))
    };
    [[eight(0), eight(1), eight(2), eight(3)], [eight(4), eight(5), eight(6), eight(7)]]
}

fn halves<T>([a, b, c, d, e, f, g, h]: [T; 8]) -> [[T; 4]; 2] {
    [[a, b, c, d], [e, f, g, h]]
}

/// Adds `x · a + y · b` of each pair to `sums`.
#[inline]
#[target_feature(enable = "avx2")]
fn add(sums: __m256i, pairs: __m256i, a: i16, b: i16) -> __m256i {
    _mm256_add_epi32(sums, mix(pairs, a, b))
}

/// `x · a + y · b` of each pair.
#[inline]
#[target_feature(enable = "avx2")]
fn mix(pairs: __m256i, a: i16, b: i16) -> __m256i {
    _mm256_madd_epi16(pairs, _mm256_set1_epi32(i32::from(a as u16) | i32::from(b) << 16))
}

/// What rounds a sum before it is divided by 2^SHIFT.
#[inline]
#[target_feature(enable = "avx2")]
fn rounding<const SHIFT: i32>() -> __m256i {
    _mm256_set1_epi32(1 << (SHIFT - 1))
}

/// Sums and differences, divided by 2^SHIFT.
#[inline]
#[target_feature(enable = "avx2")]
fn butterfly<const SHIFT: i32>(even: __m256i, odd: __m256i) -> (__m256i, __m256i) {
    let divided = |sums| _mm256_srai_epi32::<SHIFT>(sums);
    (divided(_mm256_add_epi32(even, odd)), divided(_mm256_sub_epi32(even, odd)))
}

/// `plain::full`, for four numbers of each block at once.
#[inline]
#[target_feature(enable = "avx2")]
fn full<const SHIFT: i32>([x04, x26, x17, x53]: Pairs) -> [__m256i; 8] {
    let x40 = _mm256_or_si256(_mm256_slli_epi32::<16>(x04), _mm256_srli_epi32::<16>(x04));
    let first = |pairs| add(rounding::<SHIFT>(), pairs, 1 << BITS, 0);
    let sum = first(_mm256_add_epi16(x04, x40));
    let difference = first(_mm256_sub_epi16(x04, x40));
    let outer = mix(x26, 10_703, 4433);
    let inner = mix(x26, 4433, -10_704);
    let sums = _mm256_add_epi16(x17, x53);
    let a = mix(sums, 9633, -6436);
    let b = mix(sums, 6437, 9633);
    let (y0, y7) = butterfly::<SHIFT>(_mm256_add_epi32(sum, outer), add(b, x17, 4926, -7373));
    let (y1, y6) = butterfly::<SHIFT>(_mm256_add_epi32(difference, inner), add(a, x53, -20_995, 4177));
    let (y2, y5) = butterfly::<SHIFT>(_mm256_sub_epi32(difference, inner), add(b, x53, -4176, -20_995));
    let (y3, y4) = butterfly::<SHIFT>(_mm256_sub_epi32(sum, outer), add(a, x17, -7373, -4927));
    [y0, y1, y2, y3, y4, y5, y6, y7]
}

/// `plain::half`, for four numbers of each block at once.
#[inline]
#[target_feature(enable = "avx2")]
fn half<const SHIFT: i32>([x04, x26, x17, x53]: Pairs) -> [__m256i; 4] {
    let first = add(rounding::<SHIFT>(), x04, 1 << (BITS + 1), 0);
    let second = mix(x26, 15_137, -6270);
    let odd = |a, b, c, d| add(mix(x17, a, b), x53, c, d);
    let (y0, y3) = butterfly::<SHIFT>(_mm256_add_epi32(first, second), odd(20_995, -4176, -4926, 7373));
    let (y1, y2) = butterfly::<SHIFT>(_mm256_sub_epi32(first, second), odd(8697, -1730, 11_893, -17_799));
    [y0, y1, y2, y3]
}

/// Swaps rows and columns: from four rows of columns 0, 4, 2, 6 and of columns 1, 7, 5, 3, saturated to 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose(left: [__m256i; 4], right: [__m256i; 4]) -> Pairs {
    let rows = |half: [__m256i; 4]| {
        let two = |at: usize| _mm256_castsi256_ps(_mm256_packs_epi32(half[at], half[at + 1]));
        (two(0), two(2))
    };
    let ((a, b), (c, d)) = (rows(left), rows(right));
    [
        _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(a, b)),
        _mm256_castps_si256(_mm256_shuffle_ps::<0b11_01_11_01>(a, b)),
        _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(c, d)),
        _mm256_castps_si256(_mm256_shuffle_ps::<0b11_01_11_01>(c, d)),
    ]
}

/// Four rows of four samples, from four columns.
#[inline]
#[target_feature(enable = "avx2")]
fn to_samples(columns: [__m256i; 4]) -> __m256i {
    let a = _mm256_packs_epi32(columns[0], columns[1]);
    let b = _mm256_packs_epi32(columns[2], columns[3]);
    let order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    let rows = _mm256_shuffle_epi8(_mm256_packs_epi16(a, b), order);
    _mm256_xor_si256(rows, _mm256_set1_epi8(-128))
}

/// Four rows of eight samples, two in a vector, from the sums of the first pass for these rows.
#[inline]
#[target_feature(enable = "avx2")]
fn four_rows(left: [__m256i; 4], right: [__m256i; 4]) -> (__m256i, __m256i) {
    let [left, right] = halves(full::<18>(transpose(left, right)));
    let (left, right) = (to_samples(left), to_samples(right));
    (_mm256_unpacklo_epi32(left, right), _mm256_unpackhi_epi32(left, right))
}

/// SAFETY: the targets lie in `samples`.
#[target_feature(enable = "avx2")]
unsafe fn inverse_8(group: &mut Group, targets: &[Target], samples: &mut [u8]) {
    for (blocks, targets) in in_twos(group, targets) {
        let [left, right] = load(blocks);
        let (left, right) = (halves(full::<11>(left)), halves(full::<11>(right)));
        let (a, b) = four_rows(left[0], right[0]);
        let (c, d) = four_rows(left[1], right[1]);
        for (at, rows) in [a, b, c, d].into_iter().enumerate() {
            let lanes = [_mm256_castsi256_si128(rows), _mm256_extracti128_si256::<1>(rows)];
            for (target, rows) in targets.iter().zip(lanes) {
                // SAFETY: eight samples of rows 2 · at and 2 · at + 1 lie in `samples`.
                unsafe {
                    let first = samples.as_mut_ptr().add(target.at + 2 * at * target.stride);
                    _mm_storel_epi64(first.cast(), rows);
                    _mm_storeh_pd(first.add(target.stride).cast(), _mm_castsi128_pd(rows));
                }
            }
        }
    }
    *group = Group::ZERO;
}

#[target_feature(enable = "avx2")]
fn inverse_4(group: &mut Group, targets: &[Target], samples: &mut [u8]) {
    for (blocks, targets) in in_twos(group, targets) {
        let [left, right] = load(blocks);
        let rows = to_samples(half::<19>(transpose(half::<12>(left), half::<12>(right))));
        let lanes = [_mm256_castsi256_si128(rows), _mm256_extracti128_si256::<1>(rows)];
        for (target, rows) in targets.iter().zip(lanes) {
            let mut bytes = [0; 16];
            // SAFETY: the array has sixteen bytes.
            unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), rows) };
            for (at, row) in bytes.as_chunks::<4>().0.iter().enumerate() {
                samples[target.at + at * target.stride..][..4].copy_from_slice(row);
            }
        }
    }
    *group = Group::ZERO;
}
