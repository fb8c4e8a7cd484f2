//! The vectors of the x86 levels, based on intrinsics.

use std::arch::asm;
use std::arch::x86_64::*;

use super::{Kernel, Simd};

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

macro_rules! x86_simd {
    ($name:ident, $lanes:literal, $v:ty, $splat:ident, $load:ident, $store:ident, $add:ident, $sub:ident,
     $mul:ident, $div:ident, $sqrt:ident, $fma:ident, $max:ident, $min:ident, $gate:ident,
     $greater:ident, $store_bytes:ident, $where_byte:ident, $permute:ident, $load_bf16:ident, $store_bf16:ident, $pair:ident, $interleave:ident, $dot:ident) => {
        /// The vectors of one x86 level.
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        // SAFETY (all blocks below): kernels run only inside `dispatch`, on machines with the level; the caller is
        // responsible for pointers.
        impl Simd for $name {
            const LANES: usize = $lanes;
            type V = $v;
            #[inline(always)]
            unsafe fn splat(x: f32) -> $v {
                // SAFETY: see above.
                unsafe { $splat(x) }
            }
            #[inline(always)]
            unsafe fn load(p: *const f32) -> $v {
                // SAFETY: see above.
                unsafe { $load(p) }
            }
            #[inline(always)]
            unsafe fn store(p: *mut f32, v: $v) {
                // SAFETY: see above.
                unsafe { $store(p, v) }
            }
            #[inline(always)]
            unsafe fn add(a: $v, b: $v) -> $v {
                // SAFETY: see above.
                unsafe { $add(a, b) }
            }
            #[inline(always)]
            unsafe fn sub(a: $v, b: $v) -> $v {
                // SAFETY: see above.
                unsafe { $sub(a, b) }
            }
            #[inline(always)]
            unsafe fn mul(a: $v, b: $v) -> $v {
                // SAFETY: see above.
                unsafe { $mul(a, b) }
            }
            #[inline(always)]
            unsafe fn div(a: $v, b: $v) -> $v {
                // SAFETY: see above.
                unsafe { $div(a, b) }
            }
            #[inline(always)]
            unsafe fn sqrt(a: $v) -> $v {
                // SAFETY: see above.
                unsafe { $sqrt(a) }
            }
            #[inline(always)]
            unsafe fn mul_add(a: $v, b: $v, c: $v) -> $v {
                // SAFETY: see above.
                unsafe { $fma(a, b, c) }
            }
            #[inline(always)]
            unsafe fn relu(a: $v) -> $v {
                // If either operand is NaN, the instruction returns the second.
                // SAFETY: see above.
                unsafe { $max($splat(0.0), a) }
            }
            #[inline(always)]
            unsafe fn at_most(a: $v, limit: $v) -> $v {
                // As above.
                // SAFETY: see above.
                unsafe { $min(limit, a) }
            }
            #[inline(always)]
            unsafe fn where_above(a: $v, gate: $v, limit: $v) -> $v {
                // SAFETY: see above.
                unsafe { $gate(a, gate, limit) }
            }
            #[inline(always)]
            unsafe fn greater(best: [$v; 2], found: [$v; 2]) -> [$v; 2] {
                // SAFETY: see above.
                unsafe { $greater(best, found) }
            }
            #[inline(always)]
            unsafe fn store_bytes(p: *mut u8, v: $v) {
                // SAFETY: see above.
                unsafe { $store_bytes(p, v) }
            }
            #[inline(always)]
            unsafe fn where_byte(a: $v, p: *const u8, byte: u8) -> $v {
                // SAFETY: see above.
                unsafe { $where_byte(a, p, byte) }
            }
            #[inline(always)]
            unsafe fn permute(a: $v, lanes: *const i32) -> $v {
                // SAFETY: see above.
                unsafe { $permute(a, lanes) }
            }
            #[inline(always)]
            unsafe fn load_bf16(p: *const u16) -> $v {
                // SAFETY: see above.
                unsafe { $load_bf16(p) }
            }
            #[inline(always)]
            unsafe fn store_bf16(p: *mut u16, v: $v) {
                // SAFETY: see above.
                unsafe { $store_bf16(p, v) }
            }
            #[inline(always)]
            unsafe fn pair(low: $v, high: $v) -> $v {
                // SAFETY: see above.
                unsafe { $pair(low, high) }
            }
            #[inline(always)]
            unsafe fn interleave(low: *const u16, high: *const u16) -> $v {
                // SAFETY: see above.
                unsafe { $interleave(low, high) }
            }
            #[inline(always)]
            unsafe fn dot(a: $v, b: $v, c: $v) -> $v {
                // SAFETY: see above.
                unsafe { $dot(a, b, c) }
            }
        }
    };
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

#[inline(always)]
unsafe fn gate_512(a: __m512, gate: __m512, limit: __m512) -> __m512 {
    // SAFETY: called by the level's methods only.
    unsafe {
        let a = loaded(a);
        _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(gate, limit), a)
    }
}

#[inline(always)]
unsafe fn gate_256(a: __m256, gate: __m256, limit: __m256) -> __m256 {
    // SAFETY: called by the level's methods only.
    unsafe { _mm256_and_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(gate, limit), a) }
}

#[inline(always)]
unsafe fn greater_512(best: [__m512; 2], found: [__m512; 2]) -> [__m512; 2] {
    // SAFETY: called by the level's methods only.
    unsafe {
        let greater = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(found[0], best[0]);
        let wins = greater | _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(found[0], found[0]);
        [_mm512_mask_mov_ps(best[0], wins, found[0]), _mm512_mask_mov_ps(best[1], wins, found[1])]
    }
}

#[inline(always)]
unsafe fn greater_256(best: [__m256; 2], found: [__m256; 2]) -> [__m256; 2] {
    // SAFETY: called by the level's methods only.
    unsafe {
        let greater = _mm256_cmp_ps::<_CMP_GT_OQ>(found[0], best[0]);
        let wins = _mm256_or_ps(greater, _mm256_cmp_ps::<_CMP_UNORD_Q>(found[0], found[0]));
        [_mm256_blendv_ps(best[0], found[0], wins), _mm256_blendv_ps(best[1], found[1], wins)]
    }
}

#[inline(always)]
unsafe fn store_bytes_512(p: *mut u8, v: __m512) {
    // SAFETY: called by the level's methods only.
    unsafe { _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v))) }
}

#[inline(always)]
unsafe fn store_bytes_256(p: *mut u8, v: __m256) {
    // SAFETY: called by the level's methods only.
    unsafe {
        let words = _mm256_cvtps_epi32(v);
        let words = _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
        _mm_storel_epi64(p.cast(), _mm_packus_epi16(words, words));
    }
}

#[inline(always)]
unsafe fn where_byte_512(a: __m512, p: *const u8, byte: u8) -> __m512 {
    // SAFETY: called by the level's methods only.
    unsafe {
        let a = loaded(a);
        let equal = _mm_cmpeq_epi8_mask(_mm_loadu_si128(p.cast()), _mm_set1_epi8(byte.cast_signed()));
        _mm512_maskz_mov_ps(equal, a)
    }
}

#[inline(always)]
unsafe fn where_byte_256(a: __m256, p: *const u8, byte: u8) -> __m256 {
    // SAFETY: called by the level's methods only.
    unsafe {
        let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
        let equal = _mm256_cmpeq_epi32(bytes, _mm256_set1_epi32(byte.into()));
        _mm256_and_ps(a, _mm256_castsi256_ps(equal))
    }
}

#[inline(always)]
unsafe fn permute_512(a: __m512, lanes: *const i32) -> __m512 {
    // SAFETY: called by the level's methods only.
    unsafe { _mm512_permutexvar_ps(_mm512_loadu_si512(lanes.cast()), a) }
}

#[inline(always)]
unsafe fn permute_256(a: __m256, lanes: *const i32) -> __m256 {
    // SAFETY: called by the level's methods only.
    unsafe { _mm256_permutevar8x32_ps(a, _mm256_loadu_si256(lanes.cast())) }
}

#[inline(always)]
unsafe fn load_bf16_512(p: *const u16) -> __m512 {
    // SAFETY: called by the level's methods only.
    unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast())))) }
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

#[inline(always)]
unsafe fn store_bf16_512(p: *mut u16, v: __m512) {
    // SAFETY: called by the level's methods only.
    unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(round_512(v))) }
}

#[inline(always)]
unsafe fn pair_512(low: __m512, high: __m512) -> __m512 {
    // SAFETY: called by the level's methods only.
    unsafe {
        let high = _mm512_slli_epi32::<16>(round_512(high));
        _mm512_castsi512_ps(_mm512_or_si512(round_512(low), high))
    }
}

#[inline(always)]
unsafe fn interleave_512(low: *const u16, high: *const u16) -> __m512 {
    // SAFETY: called by the level's methods only.
    unsafe {
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
}

#[inline(always)]
unsafe fn dot_512(a: __m512, b: __m512, c: __m512) -> __m512 {
    // SAFETY: called by the level's methods only.
    unsafe {
        let low = |v| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_castps_si512(v)));
        let high = |v| _mm512_and_ps(v, _mm512_castsi512_ps(_mm512_set1_epi32(0xffff_0000_u32 as i32)));
        _mm512_fmadd_ps(high(a), high(b), _mm512_fmadd_ps(low(a), low(b), c))
    }
}

#[inline(always)]
unsafe fn store_bf16_native(p: *mut u16, v: __m512) {
    // SAFETY: called by the level's methods only; both types are 32 bytes of plain data.
    unsafe { _mm256_storeu_si256(p.cast(), std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(v))) }
}

#[inline(always)]
unsafe fn pair_native(low: __m512, high: __m512) -> __m512 {
    // SAFETY: called by the level's methods only; the types are plain data of equal size.
    unsafe {
        let widen = |v| _mm512_cvtepu16_epi32(std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(v)));
        let high = _mm512_slli_epi32::<16>(widen(high));
        _mm512_castsi512_ps(_mm512_or_si512(widen(low), high))
    }
}

#[inline(always)]
unsafe fn dot_native(a: __m512, b: __m512, c: __m512) -> __m512 {
    // SAFETY: called by the level's methods only; the types are plain data of equal size.
    unsafe {
        _mm512_dpbf16_ps(c, std::mem::transmute::<__m512, __m512bh>(a), std::mem::transmute::<__m512, __m512bh>(b))
    }
}

#[inline(always)]
unsafe fn load_bf16_256(p: *const u16) -> __m256 {
    // SAFETY: called by the level's methods only.
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast())))) }
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

#[inline(always)]
unsafe fn store_bf16_256(p: *mut u16, v: __m256) {
    // SAFETY: called by the level's methods only.
    unsafe {
        let bits = round_256(v);
        let halves = [_mm256_castsi256_si128(bits), _mm256_extracti128_si256::<1>(bits)];
        _mm_storeu_si128(p.cast(), _mm_packus_epi32(halves[0], halves[1]));
    }
}

#[inline(always)]
unsafe fn pair_256(low: __m256, high: __m256) -> __m256 {
    // SAFETY: called by the level's methods only.
    unsafe {
        let high = _mm256_slli_epi32::<16>(round_256(high));
        _mm256_castsi256_ps(_mm256_or_si256(round_256(low), high))
    }
}

#[inline(always)]
unsafe fn interleave_256(low: *const u16, high: *const u16) -> __m256 {
    // SAFETY: called by the level's methods only.
    unsafe {
        let widen = |p: *const u16| _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
        _mm256_castsi256_ps(_mm256_or_si256(widen(low), _mm256_slli_epi32::<16>(widen(high))))
    }
}

#[inline(always)]
unsafe fn dot_256(a: __m256, b: __m256, c: __m256) -> __m256 {
    // SAFETY: called by the level's methods only.
    unsafe {
        let low = |v| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_castps_si256(v)));
        let high = |v| _mm256_and_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(0xffff_0000_u32 as i32)));
        _mm256_fmadd_ps(high(a), high(b), _mm256_fmadd_ps(low(a), low(b), c))
    }
}

x86_simd!(
    Avx512,
    16,
    __m512,
    _mm512_set1_ps,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_add_ps,
    _mm512_sub_ps,
    _mm512_mul_ps,
    _mm512_div_ps,
    _mm512_sqrt_ps,
    _mm512_fmadd_ps,
    _mm512_max_ps,
    _mm512_min_ps,
    gate_512,
    greater_512,
    store_bytes_512,
    where_byte_512,
    permute_512,
    load_bf16_512,
    store_bf16_512,
    pair_512,
    interleave_512,
    dot_512
);
x86_simd!(
    Avx512Bf16,
    16,
    __m512,
    _mm512_set1_ps,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_add_ps,
    _mm512_sub_ps,
    _mm512_mul_ps,
    _mm512_div_ps,
    _mm512_sqrt_ps,
    _mm512_fmadd_ps,
    _mm512_max_ps,
    _mm512_min_ps,
    gate_512,
    greater_512,
    store_bytes_512,
    where_byte_512,
    permute_512,
    load_bf16_512,
    store_bf16_native,
    pair_native,
    interleave_512,
    dot_native
);
x86_simd!(
    Avx2,
    8,
    __m256,
    _mm256_set1_ps,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_add_ps,
    _mm256_sub_ps,
    _mm256_mul_ps,
    _mm256_div_ps,
    _mm256_sqrt_ps,
    _mm256_fmadd_ps,
    _mm256_max_ps,
    _mm256_min_ps,
    gate_256,
    greater_256,
    store_bytes_256,
    where_byte_256,
    permute_256,
    load_bf16_256,
    store_bf16_256,
    pair_256,
    interleave_256,
    dot_256
);
