//! The vectors of the x86 levels, based on intrinsics.

use std::arch::asm;
use std::arch::x86_64::*;

use super::{Kernel, Lanes, Simd};
use crate::inlined::inlined;

#[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(super) unsafe fn run_avx512_bf16<K: Kernel>(kernel: K) {
    // SAFETY: the features of this function are those of the level.
    unsafe { kernel.run::<Avx512Bf16>() }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(super) unsafe fn run_avx512<K: Kernel>(kernel: K) {
    // SAFETY: the features of this function are those of the level.
    unsafe { kernel.run::<Avx512>() }
}

#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn run_avx2<K: Kernel>(kernel: K) {
    // SAFETY: as above.
    unsafe { kernel.run::<Avx2>() }
}

/// The vector, held in a register. A load that the compiler folds into a masked move waits for the mask, and therefore
/// for the operands of the mask: two streams from memory would then be read one after the other.
#[target_feature(enable = "avx512f")]
#[inline]
fn loaded(mut a: __m512) -> __m512 {
    // SAFETY: the assembly contains no instructions.
    unsafe { asm!("/* {0} */", inout(zmm_reg) a, options(pure, nomem, nostack, preserves_flags)) };
    a
}

/// A level with vectors of 512 bits. `rounding` has the methods in which the levels differ.
macro_rules! avx512 {
    ($(#[$doc:meta])* $name:ident, $($rounding:tt)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl Lanes for $name {
            const LANES: usize = 16;
            type V = __m512;
            inlined! {
                unsafe fn splat(x: f32) -> __m512 { _mm512_set1_ps(x) }
                unsafe fn load(p: *const f32) -> __m512 { _mm512_loadu_ps(p) }
                unsafe fn store(p: *mut f32, v: __m512) { _mm512_storeu_ps(p, v) }
                unsafe fn add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
                unsafe fn sub(a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
                unsafe fn mul(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
                unsafe fn div(a: __m512, b: __m512) -> __m512 { _mm512_div_ps(a, b) }
                unsafe fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
                unsafe fn mul_sub(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmsub_ps(a, b, c) }
                unsafe fn times_power_of_two(a: __m512, power: __m512) -> __m512 { _mm512_scalef_ps(a, power) }
                unsafe fn abs(a: __m512) -> __m512 { _mm512_abs_ps(a) }
                // If either operand is NaN, the instruction returns the second; so in the next two.
                unsafe fn relu(a: __m512) -> __m512 { _mm512_max_ps(_mm512_set1_ps(0.0), a) }
                unsafe fn at_most(a: __m512, limit: __m512) -> __m512 { _mm512_min_ps(limit, a) }
                unsafe fn at_least(a: __m512, limit: __m512) -> __m512 { _mm512_max_ps(limit, a) }
                unsafe fn where_above(a: __m512, gate: __m512, limit: __m512) -> __m512 {
                    let a = loaded(a);
                    _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(gate, limit), a)
                }
            }
        }

        impl Simd for $name {
            inlined! {
                unsafe fn stream(p: *mut f32, v: __m512) { _mm512_stream_ps(p, v) }
                unsafe fn sqrt(a: __m512) -> __m512 { _mm512_sqrt_ps(a) }
                unsafe fn greater(best: [__m512; 2], found: [__m512; 2]) -> [__m512; 2] {
                    let greater = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(found[0], best[0]);
                    let wins = greater | _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(found[0], found[0]);
                    [_mm512_mask_mov_ps(best[0], wins, found[0]), _mm512_mask_mov_ps(best[1], wins, found[1])]
                }
                unsafe fn store_bytes(p: *mut u8, v: __m512) {
                    _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)))
                }
                unsafe fn where_byte(a: __m512, p: *const u8, byte: u8) -> __m512 {
                    let a = loaded(a);
                    let equal = _mm_cmpeq_epi8_mask(_mm_loadu_si128(p.cast()), _mm_set1_epi8(byte.cast_signed()));
                    _mm512_maskz_mov_ps(equal, a)
                }
                unsafe fn permute(a: __m512, lanes: *const i32) -> __m512 {
                    _mm512_permutexvar_ps(_mm512_loadu_si512(lanes.cast()), a)
                }
                unsafe fn load_bf16(p: *const u16) -> __m512 {
                    let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
                    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
                }
                unsafe fn interleave(low: *const u16, high: *const u16) -> __m512 {
                    let load = |p: *const u16| _mm512_castsi256_si512(_mm256_loadu_si256(p.cast()));
                    // Half-word 32 + i is value i of the second operand.
                    let order: [u16; 32] = const {
                        let mut order = [0; 32];
                        let mut i = 0;
                        while i < 32 {
                            order[i as usize] = i / 2 + 32 * (i % 2);
                            i += 1;
                        }
                        order
                    };
                    let order = _mm512_loadu_si512(order.as_ptr().cast());
                    _mm512_castsi512_ps(_mm512_permutex2var_epi16(load(low), order, load(high)))
                }
                $($rounding)*
            }
        }
    };
}

/// The nearest bf16 in the lower half of each lane; denormal numbers become 0.
#[inline(always)]
unsafe fn round_512(v: __m512) -> __m512i {
    // SAFETY: called by the level's methods only.
    unsafe {
        let bits = _mm512_castps_si512(v);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        // Rounding must not carry a NaN into infinity, so a NaN is made quiet instead.
        let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(1 << 22));
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
        let denormal = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7f80_0000));
        let sign = _mm512_and_si512(bits, _mm512_set1_epi32(i32::MIN));
        let rounded = _mm512_mask_mov_epi32(rounded, denormal, sign);
        _mm512_srli_epi32::<16>(_mm512_mask_mov_epi32(rounded, nan, quiet))
    }
}

/// The same by the hardware's instruction, in whole lanes.
#[inline(always)]
unsafe fn round_native(v: __m512) -> __m512i {
    // SAFETY: called by the level's methods only; both types are 32 bytes of plain data.
    unsafe { _mm512_cvtepu16_epi32(std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(v))) }
}

avx512! {
    /// AVX-512.
    Avx512,
    unsafe fn store_bf16(p: *mut u16, v: __m512) {
        _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(round_512(v)))
    }
    unsafe fn stream_bf16(p: *mut u16, v: __m512) {
        _mm256_stream_si256(p.cast(), _mm512_cvtepi32_epi16(round_512(v)))
    }
    unsafe fn pair(low: __m512, high: __m512) -> __m512 {
        let high = _mm512_slli_epi32::<16>(round_512(high));
        _mm512_castsi512_ps(_mm512_or_si512(round_512(low), high))
    }
    unsafe fn dot(a: __m512, b: __m512, c: __m512) -> __m512 {
        let low = |v| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_castps_si512(v)));
        let high = |v| _mm512_and_ps(v, _mm512_castsi512_ps(_mm512_set1_epi32(0xffff_0000_u32 as i32)));
        _mm512_fmadd_ps(high(a), high(b), _mm512_fmadd_ps(low(a), low(b), c))
    }
}

avx512! {
    /// AVX-512 with its instructions for bf16. The types that are transmuted are plain data of equal size.
    Avx512Bf16,
    unsafe fn store_bf16(p: *mut u16, v: __m512) {
        _mm256_storeu_si256(p.cast(), std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(v)))
    }
    unsafe fn stream_bf16(p: *mut u16, v: __m512) {
        _mm256_stream_si256(p.cast(), std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(v)))
    }
    unsafe fn pair(low: __m512, high: __m512) -> __m512 {
        let high = _mm512_slli_epi32::<16>(round_native(high));
        _mm512_castsi512_ps(_mm512_or_si512(round_native(low), high))
    }
    unsafe fn dot(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_dpbf16_ps(c, std::mem::transmute::<__m512, __m512bh>(a), std::mem::transmute::<__m512, __m512bh>(b))
    }
}

/// The nearest bf16 in the lower half of each lane; denormal numbers become 0.
#[inline(always)]
unsafe fn round_256(v: __m256) -> __m256i {
    // SAFETY: called by the level's methods only.
    unsafe {
        let bits = _mm256_castps_si256(v);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(1 << 22));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
        let exponent = _mm256_and_si256(bits, _mm256_set1_epi32(0x7f80_0000));
        let denormal = _mm256_cmpeq_epi32(exponent, _mm256_setzero_si256());
        let sign = _mm256_and_si256(bits, _mm256_set1_epi32(i32::MIN));
        let rounded = _mm256_blendv_epi8(rounded, sign, denormal);
        _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan))
    }
}

/// AVX2 with FMA.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

impl Lanes for Avx2 {
    const LANES: usize = 8;
    type V = __m256;
    inlined! {
        unsafe fn splat(x: f32) -> __m256 { _mm256_set1_ps(x) }
        unsafe fn load(p: *const f32) -> __m256 { _mm256_loadu_ps(p) }
        unsafe fn store(p: *mut f32, v: __m256) { _mm256_storeu_ps(p, v) }
        unsafe fn add(a: __m256, b: __m256) -> __m256 { _mm256_add_ps(a, b) }
        unsafe fn sub(a: __m256, b: __m256) -> __m256 { _mm256_sub_ps(a, b) }
        unsafe fn mul(a: __m256, b: __m256) -> __m256 { _mm256_mul_ps(a, b) }
        unsafe fn div(a: __m256, b: __m256) -> __m256 { _mm256_div_ps(a, b) }
        unsafe fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256 { _mm256_fmadd_ps(a, b, c) }
        unsafe fn mul_sub(a: __m256, b: __m256, c: __m256) -> __m256 { _mm256_fmsub_ps(a, b, c) }
        unsafe fn times_power_of_two(a: __m256, power: __m256) -> __m256 {
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(power), _mm256_set1_epi32(127));
            _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
        }
        unsafe fn abs(a: __m256) -> __m256 { _mm256_andnot_ps(_mm256_set1_ps(-0.0), a) }
        // If either operand is NaN, the instruction returns the second; so in the next two.
        unsafe fn relu(a: __m256) -> __m256 { _mm256_max_ps(_mm256_set1_ps(0.0), a) }
        unsafe fn at_most(a: __m256, limit: __m256) -> __m256 { _mm256_min_ps(limit, a) }
        unsafe fn at_least(a: __m256, limit: __m256) -> __m256 { _mm256_max_ps(limit, a) }
        unsafe fn where_above(a: __m256, gate: __m256, limit: __m256) -> __m256 {
            _mm256_and_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(gate, limit), a)
        }
    }
}

impl Simd for Avx2 {
    inlined! {
        unsafe fn stream(p: *mut f32, v: __m256) { _mm256_stream_ps(p, v) }
        unsafe fn sqrt(a: __m256) -> __m256 { _mm256_sqrt_ps(a) }
        unsafe fn greater(best: [__m256; 2], found: [__m256; 2]) -> [__m256; 2] {
            let greater = _mm256_cmp_ps::<_CMP_GT_OQ>(found[0], best[0]);
            let wins = _mm256_or_ps(greater, _mm256_cmp_ps::<_CMP_UNORD_Q>(found[0], found[0]));
            [_mm256_blendv_ps(best[0], found[0], wins), _mm256_blendv_ps(best[1], found[1], wins)]
        }
        unsafe fn store_bytes(p: *mut u8, v: __m256) {
            let words = _mm256_cvtps_epi32(v);
            let words = _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storel_epi64(p.cast(), _mm_packus_epi16(words, words));
        }
        unsafe fn where_byte(a: __m256, p: *const u8, byte: u8) -> __m256 {
            let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
            let equal = _mm256_cmpeq_epi32(bytes, _mm256_set1_epi32(byte.into()));
            _mm256_and_ps(a, _mm256_castsi256_ps(equal))
        }
        unsafe fn permute(a: __m256, lanes: *const i32) -> __m256 {
            _mm256_permutevar8x32_ps(a, _mm256_loadu_si256(lanes.cast()))
        }
        unsafe fn load_bf16(p: *const u16) -> __m256 {
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()))))
        }
        unsafe fn store_bf16(p: *mut u16, v: __m256) {
            let bits = round_256(v);
            let halves = [_mm256_castsi256_si128(bits), _mm256_extracti128_si256::<1>(bits)];
            _mm_storeu_si128(p.cast(), _mm_packus_epi32(halves[0], halves[1]));
        }
        unsafe fn stream_bf16(p: *mut u16, v: __m256) {
            let bits = round_256(v);
            let halves = [_mm256_castsi256_si128(bits), _mm256_extracti128_si256::<1>(bits)];
            _mm_stream_si128(p.cast(), _mm_packus_epi32(halves[0], halves[1]));
        }
        unsafe fn pair(low: __m256, high: __m256) -> __m256 {
            let high = _mm256_slli_epi32::<16>(round_256(high));
            _mm256_castsi256_ps(_mm256_or_si256(round_256(low), high))
        }
        unsafe fn interleave(low: *const u16, high: *const u16) -> __m256 {
            let widen = |p: *const u16| _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_or_si256(widen(low), _mm256_slli_epi32::<16>(widen(high))))
        }
        unsafe fn dot(a: __m256, b: __m256, c: __m256) -> __m256 {
            let low = |v| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_castps_si256(v)));
            let high = |v| _mm256_and_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(0xffff_0000_u32 as i32)));
            _mm256_fmadd_ps(high(a), high(b), _mm256_fmadd_ps(low(a), low(b), c))
        }
    }
}
