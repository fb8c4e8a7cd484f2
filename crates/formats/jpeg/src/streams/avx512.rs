//! Coefficients from streams with AVX-512: all of a block at once.

use std::arch::x86_64::*;

use super::{Coded, MAX_SMALL};
use crate::level::Avx512;
use crate::transform::{Block, PLACES};

/// The place in zigzag order of each coefficient of a block.
const ORDER: [u8; 64] = {
    let mut order = [0; 64];
    let mut at = 0;
    while at < 64 {
        order[PLACES[at] as usize] = at as u8;
        at += 1;
    }
    order
};

/// Sets the coefficients of a block that is not wide, times their factors. `_has` proves that the processor has the instructions.
#[inline]
pub(super) fn put(_has: Avx512, coded: &Coded, factors: &Block, into: &mut Block) {
    // SAFETY: the processor has them.
    unsafe { spread(coded, factors, into) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,bmi1,bmi2,popcnt")]
fn spread(coded: &Coded, factors: &Block, into: &mut Block) {
    let (order, numbers) = (load(&ORDER), load(&NUMBERS));
    // SAFETY: both have more bytes.
    let (small, rest) =
        unsafe { (_mm256_loadu_si256(coded.small.as_ptr().cast()), _mm512_loadu_si512(coded.rest.as_ptr().cast())) };
    let byte = |number: u8| _mm512_set1_epi8(number as i8);
    // Four bits become a byte.
    let pairs = _mm512_cvtepu8_epi16(small);
    let small = _mm512_and_si512(_mm512_or_si512(pairs, _mm512_slli_epi16::<4>(pairs)), byte(15));
    let small = _mm512_permutexvar_epi8(_mm512_add_epi8(numbers, byte(u8::from(coded.odd))), small);
    let (below, large) = (_pdep_u64(coded.below, coded.places), _pdep_u64(coded.large, coded.places));
    let small = _mm512_maskz_expand_epi8(large, small);
    let left = _mm512_mask_cmpeq_epi8_mask(large, small, byte(MAX_SMALL as u8));
    let rest = _mm512_maskz_expand_epi8(left, rest);
    let sizes = _mm512_mask_add_epi8(small, coded.places, small, byte(1));
    let sizes = _mm512_mask_add_epi8(sizes, large, sizes, byte(1));
    let in_order = |bytes: __m512i| _mm512_permutexvar_epi8(order, bytes);
    let below = _mm512_movepi8_mask(in_order(_mm512_movm_epi8(below)));
    let (sizes, rest) = (in_order(sizes), in_order(rest));
    let values = |sizes: __m256i, rest: __m256i, below: __mmask32| {
        let sizes = _mm512_add_epi16(_mm512_cvtepu8_epi16(sizes), _mm512_cvtepu8_epi16(rest));
        _mm512_mask_sub_epi16(sizes, below, _mm512_setzero_si512(), sizes)
    };
    let low = values(_mm512_castsi512_si256(sizes), _mm512_castsi512_si256(rest), below as u32);
    let high =
        values(_mm512_extracti64x4_epi64::<1>(sizes), _mm512_extracti64x4_epi64::<1>(rest), (below >> 32) as u32);
    // SAFETY: both have 128 bytes.
    unsafe {
        let (factors, into) = (factors.as_ptr(), into.as_mut_ptr());
        _mm512_storeu_si512(into.cast(), _mm512_mullo_epi16(low, _mm512_loadu_si512(factors.cast())));
        _mm512_storeu_si512(into.add(32).cast(), _mm512_mullo_epi16(high, _mm512_loadu_si512(factors.add(32).cast())));
    }
}

/// 0 to 63.
const NUMBERS: [u8; 64] = {
    let mut numbers = [0; 64];
    let mut at = 0;
    while at < 64 {
        numbers[at] = at as u8;
        at += 1;
    }
    numbers
};

#[inline]
#[target_feature(enable = "avx512f")]
fn load(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: the array has 64 bytes.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}
