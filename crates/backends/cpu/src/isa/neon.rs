//! The vectors of the levels of 64-bit ARM, based on intrinsics. Every processor of the architecture has those of NEON.

use std::arch::aarch64::*;
use std::arch::asm;

use super::{Kernel, Lanes, Simd};
use crate::inlined::inlined;

#[target_feature(enable = "bf16")]
pub(super) unsafe fn run_neon_bf16<K: Kernel>(kernel: K) {
    // SAFETY: the features of this function are those of the level.
    unsafe { kernel.run::<NeonBf16>() }
}

/// The values as bits.
#[target_feature(enable = "neon")]
#[inline]
fn bits(v: float32x4_t) -> uint32x4_t {
    vreinterpretq_u32_f32(v)
}

/// The values with these bits.
#[target_feature(enable = "neon")]
#[inline]
fn values(bits: uint32x4_t) -> float32x4_t {
    vreinterpretq_f32_u32(bits)
}

/// Lanes that hold two half-words.
#[target_feature(enable = "neon")]
#[inline]
fn pairs(low: uint16x4_t, high: uint16x4_t) -> float32x4_t {
    vreinterpretq_f32_u16(vcombine_u16(vzip1_u16(low, high), vzip2_u16(low, high)))
}

/// A level with vectors of 128 bits. `rounding` has the methods in which the levels differ.
macro_rules! neon {
    ($(#[$doc:meta])* $name:ident, $($rounding:tt)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl Lanes for $name {
            const LANES: usize = 4;
            type V = float32x4_t;
            inlined! {
                unsafe fn splat(x: f32) -> float32x4_t { vdupq_n_f32(x) }
                unsafe fn load(p: *const f32) -> float32x4_t { vld1q_f32(p) }
                unsafe fn store(p: *mut f32, v: float32x4_t) { vst1q_f32(p, v) }
                unsafe fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t { vaddq_f32(a, b) }
                unsafe fn sub(a: float32x4_t, b: float32x4_t) -> float32x4_t { vsubq_f32(a, b) }
                unsafe fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t { vmulq_f32(a, b) }
                unsafe fn div(a: float32x4_t, b: float32x4_t) -> float32x4_t { vdivq_f32(a, b) }
                unsafe fn mul_add(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t { vfmaq_f32(c, a, b) }
                unsafe fn mul_sub(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
                    vnegq_f32(vfmsq_f32(c, a, b))
                }
                unsafe fn times_power_of_two(a: float32x4_t, power: float32x4_t) -> float32x4_t {
                    let exponent = vaddq_s32(vcvtq_s32_f32(power), vdupq_n_s32(127));
                    vmulq_f32(a, vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent)))
                }
                unsafe fn abs(a: float32x4_t) -> float32x4_t { vabsq_f32(a) }
                // The instructions for the greater and the lesser value would change the sign of zeros.
                unsafe fn relu(a: float32x4_t) -> float32x4_t { values(vbicq_u32(bits(a), vcltzq_f32(a))) }
                unsafe fn at_most(a: float32x4_t, limit: float32x4_t) -> float32x4_t {
                    vbslq_f32(vcgtq_f32(a, limit), limit, a)
                }
                unsafe fn at_least(a: float32x4_t, limit: float32x4_t) -> float32x4_t {
                    vbslq_f32(vcltq_f32(a, limit), limit, a)
                }
                unsafe fn where_above(a: float32x4_t, gate: float32x4_t, limit: float32x4_t) -> float32x4_t {
                    values(vandq_u32(bits(a), vcgtq_f32(gate, limit)))
                }
            }
        }

        impl Simd for $name {
            inlined! {
                unsafe fn sqrt(a: float32x4_t) -> float32x4_t { vsqrtq_f32(a) }
                unsafe fn greater(best: [float32x4_t; 2], found: [float32x4_t; 2]) -> [float32x4_t; 2] {
                    let number = vceqq_f32(found[0], found[0]);
                    let wins = vornq_u32(vcgtq_f32(found[0], best[0]), number);
                    [vbslq_f32(wins, found[0], best[0]), vbslq_f32(wins, found[1], best[1])]
                }
                unsafe fn store_bytes(p: *mut u8, v: float32x4_t) {
                    let words = vmovn_u32(vcvtq_u32_f32(v));
                    let bytes = vmovn_u16(vcombine_u16(words, words));
                    p.cast::<u32>().write_unaligned(vget_lane_u32::<0>(vreinterpret_u32_u8(bytes)));
                }
                unsafe fn where_byte(a: float32x4_t, p: *const u8, byte: u8) -> float32x4_t {
                    let bytes = vcreate_s8(p.cast::<u32>().read_unaligned().into());
                    let equal = vreinterpret_s8_u8(vceq_s8(bytes, vdup_n_s8(byte.cast_signed())));
                    let equal = vmovl_s16(vget_low_s16(vmovl_s8(equal)));
                    values(vandq_u32(bits(a), vreinterpretq_u32_s32(equal)))
                }
                unsafe fn permute(a: float32x4_t, lanes: *const i32) -> float32x4_t {
                    // Places of bytes, four for each lane.
                    let places = vmlaq_n_u32(vdupq_n_u32(0x03_02_01_00), vld1q_u32(lanes.cast()), 0x04_04_04_04);
                    let bytes = vqtbl1q_u8(vreinterpretq_u8_f32(a), vreinterpretq_u8_u32(places));
                    vreinterpretq_f32_u8(bytes)
                }
                unsafe fn load_bf16(p: *const u16) -> float32x4_t {
                    values(vshlq_n_u32::<16>(vmovl_u16(vld1_u16(p))))
                }
                unsafe fn store_bf16(p: *mut u16, v: float32x4_t) { vst1_u16(p, Self::round(v)) }
                unsafe fn pair(low: float32x4_t, high: float32x4_t) -> float32x4_t {
                    pairs(Self::round(low), Self::round(high))
                }
                unsafe fn interleave(low: *const u16, high: *const u16) -> float32x4_t {
                    pairs(vld1_u16(low), vld1_u16(high))
                }
                unsafe fn dot(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t { Self::sum(a, b, c) }
            }
        }

        impl $name {
            inlined! {
                $($rounding)*
            }
        }
    };
}

neon! {
    /// NEON, which multiplies and adds in one operation.
    Neon,
    /// The nearest bf16; denormal numbers become 0.
    unsafe fn round(v: float32x4_t) -> uint16x4_t {
        let bits = bits(v);
        let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
        let rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
        // Rounding must not carry a NaN into infinity, so a NaN is made quiet instead.
        let quiet = vorrq_u32(bits, vdupq_n_u32(1 << 22));
        let rounded = vbslq_u32(vceqq_f32(v, v), rounded, quiet);
        let sign = vandq_u32(bits, vdupq_n_u32(1 << 31));
        let normal = vtstq_u32(bits, vdupq_n_u32(0x7f80_0000));
        vshrn_n_u32::<16>(vbslq_u32(normal, rounded, sign))
    }
    /// See [`Simd::dot`].
    unsafe fn sum(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        let low = |v| values(vshlq_n_u32::<16>(bits(v)));
        let high = |v| values(vandq_u32(bits(v), vdupq_n_u32(0xffff_0000)));
        vfmaq_f32(vfmaq_f32(c, low(a), low(b)), high(a), high(b))
    }
}

neon! {
    /// NEON with its instructions for bf16.
    NeonBf16,
    /// The nearest bf16. The instruction keeps denormal numbers, so only their signs are left to it.
    unsafe fn round(v: float32x4_t) -> uint16x4_t {
        let normal = vtstq_u32(bits(v), vdupq_n_u32(0x7f80_0000));
        nearest(values(vandq_u32(bits(v), vorrq_u32(normal, vdupq_n_u32(1 << 31)))))
    }
    /// See [`Simd::dot`].
    unsafe fn sum(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t { dot(a, b, c) }
}

/// The nearest bf16, by the processor's instruction, for which there is no intrinsic.
#[target_feature(enable = "bf16")]
#[inline]
fn nearest(v: float32x4_t) -> uint16x4_t {
    let rounded;
    // SAFETY: this function has the feature of the instruction, which touches only its registers.
    unsafe {
        asm!(
            "bfcvtn {0:v}.4h, {1:v}.4s",
            lateout(vreg) rounded,
            in(vreg) v,
            options(pure, nomem, nostack, preserves_flags)
        )
    };
    rounded
}

/// `c` plus the products of both halves of the lanes, by the processor's instruction, for which there is no intrinsic. It rounds
/// inexact sums to odd numbers, and takes denormal ones for zeros.
#[target_feature(enable = "bf16")]
#[inline]
fn dot(a: float32x4_t, b: float32x4_t, mut c: float32x4_t) -> float32x4_t {
    // SAFETY: this function has the feature of the instruction, which touches only its registers.
    unsafe {
        asm!(
            "bfdot {0:v}.4s, {1:v}.8h, {2:v}.8h",
            inout(vreg) c,
            in(vreg) a,
            in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        )
    };
    c
}
