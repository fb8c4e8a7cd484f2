//! The hardware tile registers, in inline assembly, since the intrinsics are not stable. The compiler uses no tile register
//! itself, since no function enables the feature. Therefore they keep their values from one statement to the next.

use std::arch::asm;
use std::arch::x86_64::{
    __m512, __m512i, _mm512_add_epi32, _mm512_and_si512, _mm512_castpd_ps, _mm512_castps_pd, _mm512_castps_si512,
    _mm512_castsi512_ps, _mm512_loadu_ps, _mm512_or_si512, _mm512_set1_epi32, _mm512_setzero_ps, _mm512_shuffle_f32x4,
    _mm512_srli_epi32, _mm512_storeu_ps, _mm512_sub_ps, _mm512_unpackhi_pd, _mm512_unpackhi_ps, _mm512_unpacklo_pd,
    _mm512_unpacklo_ps,
};
use std::hint::black_box;

use super::TileRegisters;
use crate::element::Element;
use crate::gemm::Matmul;
use crate::isa::Avx512Bf16;

/// The operand of `ldtilecfg`.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Eight registers of 16 rows of 64 bytes.
static FULL_SIZE: Configuration = Configuration {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// The registers of this thread.
struct Registers;

impl TileRegisters for Registers {
    type Vectors = Avx512Bf16;
    #[inline(always)]
    unsafe fn configure() {
        // SAFETY: here and below, by the caller's promise the machine has the instruction and the process the permission.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &FULL_SIZE, options(nostack, readonly, preserves_flags)) }
    }
    #[inline(always)]
    unsafe fn release() {
        // SAFETY: see above.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
    }
    #[inline(always)]
    unsafe fn zero<const T: usize>() {
        // SAFETY: see above.
        unsafe { asm!("tilezero tmm{t}", t = const T, options(nostack, nomem, preserves_flags)) }
    }
    #[inline(always)]
    unsafe fn load<const T: usize>(from: *const f32, stride: usize) {
        // SAFETY: see above; the rows are the caller's responsibility.
        unsafe {
            asm!("tileloadd tmm{t}, [{from} + {bytes}*1]", t = const T, from = in(reg) from, bytes = in(reg) 4 * stride,
                options(nostack, readonly, preserves_flags))
        }
    }
    #[inline(always)]
    unsafe fn store<const T: usize>(to: *mut f32, stride: usize) {
        // SAFETY: see above; the rows are the caller's responsibility.
        unsafe {
            asm!("tilestored [{to} + {bytes}*1], tmm{t}", t = const T, to = in(reg) to, bytes = in(reg) 4 * stride,
                options(nostack, preserves_flags))
        }
    }
    #[inline(always)]
    unsafe fn multiply_add<const C: usize, const A: usize, const B: usize>() {
        // SAFETY: see above.
        unsafe {
            asm!("tdpbf16ps tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B,
                options(nostack, nomem, preserves_flags))
        }
    }
    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        // SAFETY: the level of the vectors is available; the rows are the caller's responsibility.
        unsafe { transpose(from, from_stride, to, to_stride) }
    }
    #[inline(always)]
    unsafe fn split(rows: [*const f32; 2], to: [*mut f32; 3]) {
        // SAFETY: as above.
        unsafe { split(rows, to) }
    }
}

/// See [`TileRegisters::split`]. Parts are rounded to nearest by integers, halves away from zero. The last part needs no rounding,
/// unless it is denormal, which the registers take as 0.
///
/// # Safety
/// The machine has the vectors; rows are valid.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn split(rows: [*const f32; 2], [first, second, third]: [*mut f32; 3]) {
    let half = _mm512_set1_epi32(0x8000);
    let high = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
    let truncate = |value: __m512i| _mm512_castsi512_ps(_mm512_and_si512(value, high));
    let round = |value: __m512| truncate(_mm512_add_epi32(_mm512_castps_si512(value), half));
    let word = |[low, high]: [__m512; 2]| {
        let low = _mm512_srli_epi32::<16>(_mm512_castps_si512(low));
        _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_castps_si512(high)))
    };
    // SAFETY: the caller's promise.
    unsafe {
        let values = rows.map(|row| _mm512_loadu_ps(row));
        let parts = values.map(round);
        _mm512_storeu_ps(first, word(parts));
        let rest = [_mm512_sub_ps(values[0], parts[0]), _mm512_sub_ps(values[1], parts[1])];
        let parts = rest.map(round);
        _mm512_storeu_ps(second, word(parts));
        let rest = [_mm512_sub_ps(rest[0], parts[0]), _mm512_sub_ps(rest[1], parts[1])];
        _mm512_storeu_ps(third, word(rest.map(|value| truncate(_mm512_castps_si512(value)))));
    }
}

/// See [`TileRegisters::transpose`]. Plain loops: in a closure that is not inlined, vectors would be passed in memory.
///
/// # Safety
/// The machine has the vectors; rows are valid.
#[target_feature(enable = "avx512f")]
unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
    // Squares of 4 by 4 words, transposed: quarter q of `squares[g][k]` is column 4q + k of the rows from 4g.
    let mut squares = [[_mm512_setzero_ps(); 4]; 4];
    for (group, square) in squares.iter_mut().enumerate() {
        let mut rows = [_mm512_setzero_ps(); 4];
        for (i, row) in rows.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *row = unsafe { _mm512_loadu_ps(from.add((4 * group + i) * from_stride)) };
        }
        let low_ab = _mm512_castps_pd(_mm512_unpacklo_ps(rows[0], rows[1]));
        let low_cd = _mm512_castps_pd(_mm512_unpacklo_ps(rows[2], rows[3]));
        let high_ab = _mm512_castps_pd(_mm512_unpackhi_ps(rows[0], rows[1]));
        let high_cd = _mm512_castps_pd(_mm512_unpackhi_ps(rows[2], rows[3]));
        *square = [
            _mm512_castpd_ps(_mm512_unpacklo_pd(low_ab, low_cd)),
            _mm512_castpd_ps(_mm512_unpackhi_pd(low_ab, low_cd)),
            _mm512_castpd_ps(_mm512_unpacklo_pd(high_ab, high_cd)),
            _mm512_castpd_ps(_mm512_unpackhi_pd(high_ab, high_cd)),
        ];
    }
    #[expect(clippy::needless_range_loop, reason = "it numbers a column of each of the squares")]
    for k in 0..4 {
        let left = _mm512_shuffle_f32x4::<0x44>(squares[0][k], squares[1][k]);
        let right = _mm512_shuffle_f32x4::<0x44>(squares[2][k], squares[3][k]);
        let next_left = _mm512_shuffle_f32x4::<0xee>(squares[0][k], squares[1][k]);
        let next_right = _mm512_shuffle_f32x4::<0xee>(squares[2][k], squares[3][k]);
        // SAFETY: the caller's promise.
        unsafe {
            _mm512_storeu_ps(to.add(k * to_stride), _mm512_shuffle_f32x4::<0x88>(left, right));
            _mm512_storeu_ps(to.add((4 + k) * to_stride), _mm512_shuffle_f32x4::<0xdd>(left, right));
            _mm512_storeu_ps(to.add((8 + k) * to_stride), _mm512_shuffle_f32x4::<0x88>(next_left, next_right));
            _mm512_storeu_ps(to.add((12 + k) * to_stride), _mm512_shuffle_f32x4::<0xdd>(next_left, next_right));
        }
    }
}

/// As [`super::multiply`], on the hardware registers.
///
/// # Safety
/// The level is available, and the matmuls are valid.
#[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(in crate::gemm) unsafe fn multiply_in_registers<C: Element, const TRANSPOSED: bool>(
    matmuls: impl IntoIterator<Item = Matmul<C>>,
) {
    // SAFETY: the caller's promise.
    unsafe { super::multiply::<Registers, C, TRANSPOSED>(matmuls) }
}

/// As [`super::split::multiply`], on the hardware registers.
///
/// # Safety
/// The level is available; matmuls are valid.
#[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(in crate::gemm) unsafe fn multiply_split_in_registers<const TRANSPOSED: bool>(
    matmuls: impl IntoIterator<Item = Matmul<f32>>,
) {
    // SAFETY: the caller's promise.
    unsafe { super::split::multiply::<Registers, TRANSPOSED>(matmuls) }
}

/// As [`super::split::split_panels`], by the hardware.
///
/// # Safety
/// The level is available; addresses are valid.
#[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(in crate::gemm) unsafe fn split_panels_in_registers(from: *const f32, sizes: [usize; 3], to: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe { super::split::split_panels::<Registers>(from, sizes, to) }
}

/// Keeps the registers busy for `rounds` rounds.
///
/// # Safety
/// The level is available.
pub(crate) unsafe fn flood_registers(rounds: usize) {
    // SAFETY: the caller's promise.
    black_box(unsafe { super::flood::<Registers>(rounds) });
}
