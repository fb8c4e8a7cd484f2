//! Upsampling and conversion of colours with AVX2. `_has` proves that the processor has it.
//!
//! Upsampling is the plain code, which the compiler turns into vectors well. Storing three bytes a pixel it does not.

use std::arch::x86_64::*;

use super::plain;
use crate::level::Avx2;

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
const STEP: usize = 16;

pub(super) fn ycc_to_rgb(_has: Avx2, rows: [&[u8]; 3], out: &mut [u8]) {
    // SAFETY: the processor has AVX2.
    unsafe { in_steps(rows, out, |rows| convert(rows), plain::ycc_to_rgb) }
}

pub(super) fn interleave(_has: Avx2, rows: [&[u8]; 3], out: &mut [u8]) {
    // SAFETY: the processor has AVX2.
    unsafe { in_steps(rows, out, |rows| rows, plain::interleave) }
}

/// Makes pixels sixteen at a time. The last step overlaps the one before it; fewer than sixteen pixels are `plain`'s.
#[inline]
#[target_feature(enable = "avx2")]
fn in_steps(
    rows: [&[u8]; 3],
    out: &mut [u8],
    step: impl Fn([__m128i; 3]) -> [__m128i; 3],
    plain: impl Fn([&[u8]; 3], &mut [u8]),
) {
    let width = out.len() / 3;
    if width < STEP {
        return plain(rows, out);
    }
    let rows = rows.map(|row| &row[..width]);
    for at in (0..width - STEP).step_by(STEP).chain([width - STEP]) {
        // SAFETY: sixteen samples follow `at` in each row.
        let samples = rows.map(|row| unsafe { _mm_loadu_si128(row[at..at + STEP].as_ptr().cast()) });
        let pixels = zip_three(step(samples));
        let out = &mut out[at * 3..][..STEP * 3];
        for (out, pixels) in out.as_chunks_mut::<16>().0.iter_mut().zip(pixels) {
            // SAFETY: the chunk has sixteen bytes.
            unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), pixels) };
        }
    }
}

/// The plain formulas with numbers of 16 bits: of each factor the part that makes a product too large is added apart
/// (`jdcolext-avx2.asm` of libjpeg-turbo).
#[inline]
#[target_feature(enable = "avx2")]
fn convert([y, cb, cr]: [__m128i; 3]) -> [__m128i; 3] {
    let middle = _mm256_set1_epi16(128);
    let y = _mm256_cvtepu8_epi16(y);
    let b = _mm256_sub_epi16(_mm256_cvtepu8_epi16(cb), middle);
    let r = _mm256_sub_epi16(_mm256_cvtepu8_epi16(cr), middle);
    // Rounded product with a fraction of 2^16.
    let times = |x: __m256i, factor: i16| {
        let twice = _mm256_mulhi_epi16(_mm256_add_epi16(x, x), _mm256_set1_epi16(factor));
        _mm256_srai_epi16::<1>(_mm256_add_epi16(twice, _mm256_set1_epi16(1)))
    };
    let red = _mm256_add_epi16(y, _mm256_add_epi16(r, times(r, 26_345)));
    let blue = _mm256_add_epi16(y, _mm256_add_epi16(_mm256_add_epi16(b, b), times(b, -14_942)));
    let (low, high) = (_mm256_unpacklo_epi16(b, r), _mm256_unpackhi_epi16(b, r));
    let factors = _mm256_set1_epi32(i32::from(-22_554i16 as u16) | 18_734 << 16);
    let mixed = |pairs: __m256i| {
        _mm256_srai_epi32::<16>(_mm256_add_epi32(_mm256_madd_epi16(pairs, factors), _mm256_set1_epi32(1 << 15)))
    };
    let green = _mm256_sub_epi16(_mm256_add_epi16(y, _mm256_packs_epi32(mixed(low), mixed(high))), r);
    [red, green, blue].map(|sums| {
        let bytes = _mm256_packus_epi16(sums, sums);
        _mm256_castsi256_si128(_mm256_permute4x64_epi64::<0b1000>(bytes))
    })
}

/// Sixteen pixels from three times sixteen bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn zip_three([r, g, b]: [__m128i; 3]) -> [__m128i; 3] {
    const NONE: i8 = -128;
    let pick = |x: __m128i, order: [i8; 16]| {
        // SAFETY: the array has sixteen bytes.
        _mm_shuffle_epi8(x, unsafe { _mm_loadu_si128(order.as_ptr().cast()) })
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
    ORDERS.map(|[red, green, blue]| _mm_or_si128(_mm_or_si128(pick(r, red), pick(g, green)), pick(b, blue)))
}
