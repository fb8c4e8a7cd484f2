//! Upsampling and conversion of colours with AVX2. `_has` proves that the processor has it.
//!
//! Upsampling is the plain code, which the compiler turns into vectors well. Storing three bytes a pixel it does not.

use std::arch::x86_64::*;

use enmasse_system::simd::Avx2;

use super::plain;

pub(super) fn columns(_has: Avx2, row: &[u8], wide: &mut [u8]) {
    #[target_feature(enable = "avx2")]
    fn compiled(row: &[u8], wide: &mut [u8]) {
        plain::columns(row, wide);
    }
    // SAFETY: the processor has AVX2.
    unsafe { compiled(row, wide) }
}

pub(super) fn rows(_has: Avx2, rows: [&[u8]; 2], bias: u16, wide: &mut [u8]) {
    #[target_feature(enable = "avx2")]
    fn compiled(rows: [&[u8]; 2], bias: u16, wide: &mut [u8]) {
        plain::rows(rows, bias, wide);
    }
    // SAFETY: the processor has AVX2.
    unsafe { compiled(rows, bias, wide) }
}

pub(super) fn both(_has: Avx2, rows: [&[u8]; 2], wide: &mut [u8]) {
    #[target_feature(enable = "avx2")]
    fn compiled(rows: [&[u8]; 2], wide: &mut [u8]) {
        plain::both(rows, wide);
    }
    // SAFETY: the processor has AVX2.
    unsafe { compiled(rows, wide) }
}

/// Pixels of a step.
const STEP: usize = 32;

pub(super) fn ycc_to_rgb(_has: Avx2, rows: [&[u8]; 3], out: &mut [u8]) {
    // SAFETY: the processor has AVX2.
    unsafe { in_steps(rows, out, |rows| convert(rows), plain::ycc_to_rgb) }
}

pub(super) fn interleave(_has: Avx2, rows: [&[u8]; 3], out: &mut [u8]) {
    // SAFETY: the processor has AVX2.
    unsafe { in_steps(rows, out, |rows| rows, plain::interleave) }
}

/// Makes pixels 32 at a time. The last step overlaps the one before it; fewer than 32 pixels are `plain`'s.
#[inline]
#[target_feature(enable = "avx2")]
fn in_steps(
    rows: [&[u8]; 3],
    out: &mut [u8],
    step: impl Fn([__m256i; 3]) -> [__m256i; 3],
    plain: impl Fn([&[u8]; 3], &mut [u8]),
) {
    let width = out.len() / 3;
    if width < STEP {
        return plain(rows, out);
    }
    let rows = rows.map(|row| &row[..width]);
    for at in (0..width - STEP).step_by(STEP).chain([width - STEP]) {
        // SAFETY: 32 samples follow `at` in each row.
        let samples = rows.map(|row| unsafe { _mm256_loadu_si256(row[at..at + STEP].as_ptr().cast()) });
        let pixels = zip_three(step(samples));
        let (first, second) = out[at * 3..][..STEP * 3].split_at_mut(STEP * 3 / 2);
        let halves = first.as_chunks_mut::<16>().0.iter_mut().zip(second.as_chunks_mut::<16>().0);
        for ((first, second), pixels) in halves.zip(pixels) {
            // SAFETY: each chunk has sixteen bytes.
            unsafe { _mm256_storeu2_m128i(second.as_mut_ptr().cast(), first.as_mut_ptr().cast(), pixels) };
        }
    }
}

/// The plain formulas. A product with a factor of 15 bits is rounded to the same number, as there are only 256 differences.
#[inline]
#[target_feature(enable = "avx2")]
fn convert([y, cb, cr]: [__m256i; 3]) -> [__m256i; 3] {
    let zero = _mm256_setzero_si256();
    let middle = _mm256_set1_epi8(-128);
    let (b, r) = (_mm256_xor_si256(cb, middle), _mm256_xor_si256(cr, middle));
    let twice = |high_bytes| _mm256_srai_epi16::<7>(high_bytes);
    let low =
        mix(_mm256_unpacklo_epi8(y, zero), twice(_mm256_unpacklo_epi8(zero, b)), twice(_mm256_unpacklo_epi8(zero, r)));
    let high =
        mix(_mm256_unpackhi_epi8(y, zero), twice(_mm256_unpackhi_epi8(zero, b)), twice(_mm256_unpackhi_epi8(zero, r)));
    [_mm256_packus_epi16(low[0], high[0]), _mm256_packus_epi16(low[1], high[1]), _mm256_packus_epi16(low[2], high[2])]
}

/// Red, green and blue from brightness and twice the differences, as numbers of 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn mix(y: __m256i, b: __m256i, r: __m256i) -> [__m256i; 3] {
    let times = |x, factor| _mm256_mulhrs_epi16(x, _mm256_set1_epi16(factor));
    let factors = _mm256_set1_epi32(i32::from(-11_277i16 as u16) | -23_401 << 16);
    let mixed = |pairs| {
        _mm256_srai_epi32::<16>(_mm256_add_epi32(_mm256_madd_epi16(pairs, factors), _mm256_set1_epi32(1 << 15)))
    };
    let green = _mm256_packs_epi32(mixed(_mm256_unpacklo_epi16(b, r)), mixed(_mm256_unpackhi_epi16(b, r)));
    [_mm256_add_epi16(y, times(r, 22_971)), _mm256_add_epi16(y, green), _mm256_add_epi16(y, times(b, 29_033))]
}

/// Sixteen pixels of each lane, from three times sixteen bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn zip_three([r, g, b]: [__m256i; 3]) -> [__m256i; 3] {
    const NONE: i8 = -128;
    let pick = |x: __m256i, order: [i8; 16]| {
        // SAFETY: the array has sixteen bytes.
        let order = unsafe { _mm_loadu_si128(order.as_ptr().cast()) };
        _mm256_shuffle_epi8(x, _mm256_broadcastsi128_si256(order))
    };
    // Which byte of colour `color` lands in each place of vector `vector`.
    const fn order(vector: usize, color: usize) -> [i8; 16] {
        let mut places = [NONE; 16];
        let mut at = 0;
        while at < 16 {
            let place = vector * 16 + at;
            if place % 3 == color {
                places[at] = (place / 3) as i8;
            }
            at += 1;
        }
        places
    }
    const ORDERS: [[[i8; 16]; 3]; 3] = [
        [order(0, 0), order(0, 1), order(0, 2)],
        [order(1, 0), order(1, 1), order(1, 2)],
        [order(2, 0), order(2, 1), order(2, 2)],
    ];
    ORDERS.map(|[red, green, blue]| _mm256_or_si256(_mm256_or_si256(pick(r, red), pick(g, green)), pick(b, blue)))
}
