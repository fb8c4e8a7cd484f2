//! Instruction-set levels, and the small SIMD abstraction that all kernels use.
//!
//! A kernel is a loop nest generic over [`Simd`]. [`dispatch`] instantiates it with the target
//! features of a level, so that the vector operations are inlined into it. A device takes the best
//! level of the machine, unless `--isa` names another.
//!
//! Results may differ between levels (the portable one does not fuse multiply and add), but never
//! between machines at the same level. So ranks compare their levels before the first step.

use std::fmt;

use enmasse_tensor::Bf16;

use crate::inlined::inlined;

/// An instruction-set level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// The compiler's output for plain loops on any machine.
    Portable,
    /// AVX2 with FMA.
    Avx2,
    /// AVX-512 (F, BW, DQ, VL).
    Avx512,
    /// AVX-512 with the dot product of bf16 pairs. In f32 its bits equal those of [`Isa::Avx512`].
    Avx512Bf16,
    /// The same, with AMX tiles for products of bf16, and for those of f32 in three parts. Requires the kernel's permission. Tests have
    /// emulated tiles too, which any machine runs.
    Amx,
    /// NEON, the vectors of every 64-bit ARM processor.
    Neon,
    /// NEON with the dot product of bf16 pairs. In f32 its bits equal those of [`Isa::Neon`].
    NeonBf16,
}

impl Isa {
    /// Every level, the weakest of an architecture first.
    pub const ALL: [Isa; 7] =
        [Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16, Isa::Amx, Isa::Neon, Isa::NeonBf16];

    /// The best level of this machine.
    pub fn detect() -> Isa {
        Isa::ALL.into_iter().rev().find(|isa| isa.available()).unwrap_or(Isa::Portable)
    }

    /// Whether this machine has the level.
    pub fn available(self) -> bool {
        match self {
            Isa::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => Isa::Avx512.available() && is_x86_feature_detected!("avx512bf16"),
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Isa::Avx512Bf16.available() && amx::available(),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => true,
            #[cfg(target_arch = "aarch64")]
            Isa::NeonBf16 => std::arch::is_aarch64_feature_detected!("bf16"),
            // Those of other architectures.
            _ => false,
        }
    }

    /// Whether kernels of this level run here. Those of AMX also run in their own tests, on emulated tiles.
    pub(crate) fn runs(self) -> bool {
        self.available() || (cfg!(test) && self == Isa::Amx && Isa::Avx512Bf16.available())
    }

    /// The name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Bf16 => "avx512_bf16",
            Isa::Amx => "amx",
            Isa::Neon => "neon",
            Isa::NeonBf16 => "neon_bf16",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Values per vector of the widest level.
pub(crate) const MAX_LANES: usize = 16;

/// What is computed in each lane alike. The methods are unsafe because they execute instructions of the level. They may run only
/// inside [`dispatch`], and pointers must be valid for `LANES` values (any alignment).
pub(crate) trait Lanes: Copy + 'static {
    /// Values per vector.
    const LANES: usize;
    /// The vector type.
    type V: Copy;
    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, fused if the level can.
    unsafe fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a * b - c`, fused if the level can.
    unsafe fn mul_sub(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a * 2^power` for a whole number from -126 to 127.
    unsafe fn times_power_of_two(a: Self::V, power: Self::V) -> Self::V;
    /// `a` without its sign.
    unsafe fn abs(a: Self::V) -> Self::V;
    /// 0 where `a < 0`; NaN stays.
    unsafe fn relu(a: Self::V) -> Self::V;
    /// `limit` where `a > limit`; NaN stays.
    unsafe fn at_most(a: Self::V, limit: Self::V) -> Self::V;
    /// `limit` where `a < limit`; NaN stays.
    unsafe fn at_least(a: Self::V, limit: Self::V) -> Self::V;
    /// `a` where `gate > limit`, else 0.
    unsafe fn where_above(a: Self::V, gate: Self::V, limit: Self::V) -> Self::V;
}

/// Vectors of f32. Methods are unsafe as those of [`Lanes`].
pub(crate) trait Simd: Lanes {
    /// Like [`Lanes::store`], but past the caches if the level can, so that memory is not read before it is written. The
    /// address is a multiple of the vector's size, and [`fence`] comes before other threads read.
    #[inline(always)]
    unsafe fn stream(p: *mut f32, v: Self::V) {
        // SAFETY: the caller's promise.
        unsafe { Self::store(p, v) }
    }
    unsafe fn sqrt(a: Self::V) -> Self::V;
    /// Of two tagged values: `found` if its value is greater or NaN, else `best`.
    unsafe fn greater(best: [Self::V; 2], found: [Self::V; 2]) -> [Self::V; 2];
    /// Writes whole numbers up to 255 to memory, one byte each.
    unsafe fn store_bytes(p: *mut u8, v: Self::V);
    /// `a` where the bytes from `p` equal `byte`, else 0.
    unsafe fn where_byte(a: Self::V, p: *const u8, byte: u8) -> Self::V;
    /// `LANES` values of bf16.
    unsafe fn load_bf16(p: *const u16) -> Self::V;
    /// In each lane, the value of `a` in the lane that `lanes` gives.
    unsafe fn permute(a: Self::V, lanes: *const i32) -> Self::V;
    /// Writes bf16 values to memory, rounded to nearest, ties to even; NaN stays. Denormal numbers become zeros of the
    /// same sign, as the hardware instruction makes them, so casts give the same bits at every level.
    unsafe fn store_bf16(p: *mut u16, v: Self::V);
    /// Like [`Simd::store_bf16`], in the way of [`Simd::stream`].
    #[inline(always)]
    unsafe fn stream_bf16(p: *mut u16, v: Self::V) {
        // SAFETY: the caller's promise.
        unsafe { Self::store_bf16(p, v) }
    }
    /// Lanes that hold two bf16 values, `low` in the lower half, rounded as by [`Simd::store_bf16`].
    unsafe fn pair(low: Self::V, high: Self::V) -> Self::V;
    /// Lanes that hold two bf16 values from memory.
    unsafe fn interleave(low: *const u16, high: *const u16) -> Self::V;
    /// `c` plus the products of both halves of the lanes of `a` and `b`, which are pairs of bf16. Each product is exact
    /// in f32.
    unsafe fn dot(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
}

/// A loop nest over vectors of any level. Implementations of `run` must be `#[inline(always)]`, or they are compiled
/// without the level's features.
pub(crate) trait Kernel {
    /// Whether the kernel has values of bf16. If not, it is the same at levels that only add instructions for them, and is
    /// compiled once.
    #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), expect(dead_code))]
    const BF16: bool;

    /// # Safety
    /// The machine has the level of `S`, and the kernel's pointers are valid.
    unsafe fn run<S: Simd>(self);
}

/// Runs `kernel` with the vectors of `isa`.
///
/// # Safety
/// As for [`Kernel::run`]; `isa` runs here.
pub(crate) unsafe fn dispatch<K: Kernel>(isa: Isa, kernel: K) {
    debug_assert!(isa.runs());
    // SAFETY: the caller's promise.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx | Isa::Avx512Bf16 if K::BF16 => x86::run_avx512_bf16(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Amx | Isa::Avx512Bf16 | Isa::Avx512 => x86::run_avx512(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => x86::run_avx2(kernel),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonBf16 if K::BF16 => neon::run_neon_bf16(kernel),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonBf16 | Isa::Neon => kernel.run::<Neon>(),
            // Levels of other architectures do not run here.
            _ => kernel.run::<Portable>(),
        }
    }
}

/// How far ahead of its loads a loop prefetches, in bytes.
const AHEAD: usize = 8192;

/// Prefetches the `bytes` bytes from `p`, which will be used soon. The address need not be valid.
///
/// Arithmetic between loads keeps a core from having as many loads in progress as memory could serve.
#[inline(always)]
pub(crate) fn prefetch<T>(p: *const T, bytes: usize) {
    /// Bytes of a cache line.
    const LINE: usize = 64;
    for line in 0..bytes.div_ceil(LINE) {
        let address = p.cast::<i8>().wrapping_add(LINE * line);
        // SAFETY: every processor of this architecture has the instruction, and it does not fault.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address)
        };
        // Others load without it.
        #[cfg(not(target_arch = "x86_64"))]
        let _ = address;
    }
}

/// Makes what this thread wrote by [`Simd::stream`] visible to threads that it signals afterwards.
#[inline(always)]
pub(crate) fn fence() {
    // SAFETY: every processor of this architecture has the instruction.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
}

/// Number of values between a load and the prefetch made along with it.
pub(crate) const fn values_ahead<T>() -> usize {
    AHEAD / std::mem::size_of::<T>()
}

/// The nearest bf16; denormal numbers become 0.
#[inline(always)]
fn round(value: f32) -> u16 {
    let bits = Bf16::from_f32(value).to_bits();
    if value.abs() < f32::MIN_POSITIVE { bits & 0x8000 } else { bits }
}

macro_rules! array_simd {
    ($(#[$doc:meta])* $name:ident, $lanes:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl Lanes for $name {
            const LANES: usize = $lanes;
            type V = [f32; $lanes];
            inlined! {
                unsafe fn splat(x: f32) -> Self::V { [x; $lanes] }
                unsafe fn load(p: *const f32) -> Self::V { p.cast::<Self::V>().read_unaligned() }
                unsafe fn store(p: *mut f32, v: Self::V) { p.cast::<Self::V>().write_unaligned(v) }
                unsafe fn add(a: Self::V, b: Self::V) -> Self::V { std::array::from_fn(|i| a[i] + b[i]) }
                unsafe fn sub(a: Self::V, b: Self::V) -> Self::V { std::array::from_fn(|i| a[i] - b[i]) }
                unsafe fn mul(a: Self::V, b: Self::V) -> Self::V { std::array::from_fn(|i| a[i] * b[i]) }
                unsafe fn div(a: Self::V, b: Self::V) -> Self::V { std::array::from_fn(|i| a[i] / b[i]) }
                unsafe fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
                    // Not `f32::mul_add`: without the hardware instruction that is a call into libm.
                    std::array::from_fn(|i| a[i] * b[i] + c[i])
                }
                unsafe fn mul_sub(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
                    std::array::from_fn(|i| a[i] * b[i] - c[i])
                }
                unsafe fn times_power_of_two(a: Self::V, power: Self::V) -> Self::V {
                    std::array::from_fn(|i| a[i] * f32::from_bits(((power[i] as i32 + 127) as u32) << 23))
                }
                unsafe fn abs(a: Self::V) -> Self::V { a.map(f32::abs) }
                unsafe fn relu(a: Self::V) -> Self::V {
                    std::array::from_fn(|i| if a[i] < 0.0 { 0.0 } else { a[i] })
                }
                unsafe fn at_most(a: Self::V, limit: Self::V) -> Self::V {
                    std::array::from_fn(|i| if a[i] > limit[i] { limit[i] } else { a[i] })
                }
                unsafe fn at_least(a: Self::V, limit: Self::V) -> Self::V {
                    std::array::from_fn(|i| if a[i] < limit[i] { limit[i] } else { a[i] })
                }
                unsafe fn where_above(a: Self::V, gate: Self::V, limit: Self::V) -> Self::V {
                    std::array::from_fn(|i| if gate[i] > limit[i] { a[i] } else { 0.0 })
                }
            }
        }

        impl Simd for $name {
            inlined! {
                unsafe fn sqrt(a: Self::V) -> Self::V { std::array::from_fn(|i| a[i].sqrt()) }
                unsafe fn greater(best: [Self::V; 2], found: [Self::V; 2]) -> [Self::V; 2] {
                    let wins: [bool; $lanes] =
                        std::array::from_fn(|i| found[0][i] > best[0][i] || found[0][i].is_nan());
                    [0, 1].map(|of| std::array::from_fn(|i| if wins[i] { found[of][i] } else { best[of][i] }))
                }
                unsafe fn store_bytes(p: *mut u8, v: Self::V) {
                    p.cast::<[u8; $lanes]>().write(v.map(|value| value as u8))
                }
                unsafe fn where_byte(a: Self::V, p: *const u8, byte: u8) -> Self::V {
                    let bytes = p.cast::<[u8; $lanes]>().read();
                    std::array::from_fn(|i| if bytes[i] == byte { a[i] } else { 0.0 })
                }
                unsafe fn load_bf16(p: *const u16) -> Self::V {
                    let bits = p.cast::<[u16; $lanes]>().read_unaligned();
                    bits.map(|bits| f32::from_bits(u32::from(bits) << 16))
                }
                unsafe fn permute(a: Self::V, lanes: *const i32) -> Self::V {
                    let lanes = lanes.cast::<[i32; $lanes]>().read_unaligned();
                    lanes.map(|lane| a[lane as usize])
                }
                unsafe fn store_bf16(p: *mut u16, v: Self::V) {
                    p.cast::<[u16; $lanes]>().write_unaligned(v.map(round))
                }
                unsafe fn pair(low: Self::V, high: Self::V) -> Self::V {
                    let bits = |v: f32| u32::from(round(v));
                    std::array::from_fn(|i| f32::from_bits(bits(low[i]) | bits(high[i]) << 16))
                }
                unsafe fn interleave(low: *const u16, high: *const u16) -> Self::V {
                    let [low, high] = [low, high].map(|p| p.cast::<[u16; $lanes]>().read_unaligned());
                    std::array::from_fn(|i| f32::from_bits(u32::from(low[i]) | u32::from(high[i]) << 16))
                }
                unsafe fn dot(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
                    let low = |v: f32| f32::from_bits(v.to_bits() << 16);
                    let high = |v: f32| f32::from_bits(v.to_bits() & 0xffff_0000);
                    std::array::from_fn(|i| c[i] + low(a[i]) * low(b[i]) + high(a[i]) * high(b[i]))
                }
            }
        }
    };
}

array_simd!(
    /// Four values, which any compiler back end turns into vectors.
    Portable,
    4
);
array_simd!(
    /// One value: for the tails of rows whose length is not a multiple of the vector.
    Scalar,
    1
);

#[cfg(test)]
array_simd!(
    /// Sixteen values, the width of the widest vectors, on any machine.
    Sixteen,
    16
);

#[cfg(target_arch = "x86_64")]
mod amx;
mod four;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::{Neon, NeonBf16};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512, Avx512Bf16};

pub(crate) use four::{Four, four};

#[cfg(test)]
mod tests {
    use super::*;

    struct EveryOperation<'a>(&'a [f32], &'a mut Vec<f32>);

    impl Kernel for EveryOperation<'_> {
        const BF16: bool = true;

        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            let mut out = vec![0.0; S::LANES];
            for chunk in self.0.windows(S::LANES + 1).step_by(S::LANES) {
                // SAFETY: the window holds LANES + 1 values.
                unsafe {
                    let a = S::load(chunk.as_ptr());
                    let b = S::load(chunk.as_ptr().add(1));
                    let sum = S::add(S::sub(a, b), S::div(S::mul(a, b), S::splat(3.0)));
                    let value = S::mul_add(S::where_above(sum, b, a), S::relu(a), S::sqrt(S::mul(a, a)));
                    S::store(out.as_mut_ptr(), value);
                }
                self.1.extend(&out);
            }
        }
    }

    #[test]
    fn levels_agree_but_for_rounding() {
        let values: Vec<f32> = (0..65).map(|i| ((i * 37 % 64) as f32 - 31.0) / 8.0).collect();
        let run = |isa| {
            let mut out = Vec::new();
            // SAFETY: only available levels are passed.
            unsafe { dispatch(isa, EveryOperation(&values, &mut out)) };
            out
        };
        let portable = run(Isa::Portable);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            for (a, b) in run(isa).iter().zip(&portable) {
                assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{isa}: {a} {b}");
            }
        }
    }

    /// Rounds values to bf16 in both available ways.
    struct Cast<'a>(&'a [f32], &'a mut Vec<u16>);

    impl Kernel for Cast<'_> {
        const BF16: bool = true;

        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            let (mut stored, mut words) = (vec![0u16; S::LANES], vec![0u32; S::LANES]);
            for chunk in self.0.chunks_exact(S::LANES) {
                // SAFETY: the chunk and both buffers hold LANES values.
                unsafe {
                    let values = S::load(chunk.as_ptr());
                    S::store_bf16(stored.as_mut_ptr(), values);
                    S::store(words.as_mut_ptr().cast(), S::pair(values, values));
                }
                let halves = words.iter().map(|&word| [word as u16, (word >> 16) as u16]);
                assert!(halves.eq(stored.iter().map(|&bits| [bits, bits])));
                self.1.extend(&stored);
            }
        }
    }

    #[test]
    fn casts_give_the_same_bits_at_every_level() {
        let special =
            [0.0, -0.0, 1.0, -1.5, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-39, -1e-40, 1.2e-38];
        let signalling = f32::from_bits(0x7f80_0001);
        // Around the midpoint between two neighbours, below an even and an odd one.
        let middles = (0x3f80_7ff0..0x3f80_8010).chain(0x3f81_7ff0..0x3f81_8010).map(f32::from_bits);
        let mut values: Vec<f32> = special.into_iter().chain([signalling]).chain(middles).collect();
        values.resize(values.len().next_multiple_of(16), 2.0);
        let expected: Vec<u16> = values.iter().map(|&value| round(value)).collect();
        assert_eq!(expected[8..11], [0, 0x8000, 0x0083], "denormal numbers become 0");
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            let mut found = Vec::new();
            // SAFETY: the level is available.
            unsafe { dispatch(isa, Cast(&values, &mut found)) };
            assert_eq!(found, expected, "{isa}");
        }
    }

    #[test]
    fn limits_keep_nan() {
        struct Limits(f32, f32);
        impl Kernel for Limits {
            const BF16: bool = true;

            #[inline(always)]
            unsafe fn run<S: Simd>(self) {
                let mut out = [0.0; 16];
                // SAFETY: 16 values are the widest vector.
                unsafe { S::store(out.as_mut_ptr(), S::at_most(S::relu(S::splat(self.0)), S::splat(6.0))) };
                assert!(out[0] == self.1 || (out[0].is_nan() && self.1.is_nan()));
            }
        }
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            for (x, y) in [(-1.0, 0.0), (2.0, 2.0), (f32::NAN, f32::NAN), (f32::NEG_INFINITY, 0.0), (7.0, 6.0)] {
                // SAFETY: the level is available.
                unsafe { dispatch(isa, Limits(x, y)) };
            }
        }
    }
}
