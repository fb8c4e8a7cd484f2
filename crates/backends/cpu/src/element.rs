//! How activations are stored: in f32, or in bf16, which is widened to f32 for computation.
//!
//! Kernels are generic over the element type: they load f32 vectors, compute in f32, and store
//! rounded to nearest (ties to even). Matmuls of bf16 activations multiply the stored values
//! directly: their words of 32 bits along the depth are f32 values, or pairs of bf16 for the
//! instruction that adds both products. So packing, register tiles and Winograd's planes are one
//! code for both types.

use enmasse_tensor::{Bf16, DType};

use crate::inlined::inlined;
use crate::isa::{Lanes, Scalar, Simd};
use crate::region::Region;

/// A type of values in arenas.
pub(crate) trait Stored: Copy + Send + Sync + 'static {
    /// Its name in plans.
    const DTYPE: DType;
}

impl Stored for f32 {
    const DTYPE: DType = DType::F32;
}
impl Stored for Bf16 {
    const DTYPE: DType = DType::Bf16;
}
impl Stored for u8 {
    const DTYPE: DType = DType::U8;
}
impl Stored for i32 {
    const DTYPE: DType = DType::I32;
}
impl Stored for i64 {
    const DTYPE: DType = DType::I64;
}

/// The element type of a feature map.
pub(crate) trait Element: Stored {
    /// Whether it is bf16, of which two fill a word.
    const BF16: bool = Self::PER_WORD == 2;
    /// Elements in a word of 32 bits. Matmuls advance along the depth by one word at a time.
    const PER_WORD: usize;
    /// Zero.
    const ZERO: Self;
    /// The greatest value that is stored as 0.
    const UP_TO_ZERO: f32;
    /// The least value that is stored as 6 or more.
    const FROM_SIX: f32;
    /// `LANES` values. Safety: as for [`Lanes::load`].
    unsafe fn load<S: Simd>(p: *const Self) -> S::V;
    /// `LANES` values, rounded. Safety: as for [`Lanes::store`].
    unsafe fn store<S: Simd>(p: *mut Self, v: S::V);
    /// `LANES` values, rounded, past the caches. Safety: as for [`Simd::stream`].
    unsafe fn stream<S: Simd>(p: *mut Self, v: S::V);
    /// `c` plus the products of the words in the lanes of `a` and `b`.
    unsafe fn multiply_add<S: Simd>(a: S::V, b: S::V, c: S::V) -> S::V;
    /// Words of rounded values: only `first` for f32, both for bf16.
    unsafe fn word<S: Simd>(first: S::V, second: S::V) -> S::V;
    /// Values rounded as [`Element::store`] rounds them.
    unsafe fn rounded<S: Simd>(v: S::V) -> S::V;
    /// Words of `count` columns: for f32 the values of the first row, for bf16 those of both rows, the first in the
    /// lower halves.
    ///
    /// # Safety
    /// The rows in use are valid for `count` values, and so is `to`.
    unsafe fn words<S: Simd>(rows: [*const Self; 2], count: usize, to: *mut f32);
    /// Words of rounded f32 values, by the same rule.
    ///
    /// # Safety
    /// As for [`Element::words`].
    unsafe fn rounded_words<S: Simd>(rows: [*const f32; 2], count: usize, to: *mut f32);
    /// The value as f32.
    fn get(self) -> f32;
    /// The nearest element.
    fn of(value: f32) -> Self;
}

impl Element for f32 {
    const PER_WORD: usize = 1;
    const ZERO: f32 = 0.0;
    const UP_TO_ZERO: f32 = 0.0;
    const FROM_SIX: f32 = 6.0;
    inlined! {
        unsafe fn load<S: Simd>(p: *const f32) -> S::V { S::load(p) }
        unsafe fn store<S: Simd>(p: *mut f32, v: S::V) { S::store(p, v) }
        unsafe fn stream<S: Simd>(p: *mut f32, v: S::V) { S::stream(p, v) }
        unsafe fn multiply_add<S: Simd>(a: S::V, b: S::V, c: S::V) -> S::V { S::mul_add(a, b, c) }
        unsafe fn word<S: Simd>(first: S::V, _: S::V) -> S::V { first }
        unsafe fn rounded<S: Simd>(v: S::V) -> S::V { v }
        unsafe fn words<S: Simd>([row, _]: [*const f32; 2], count: usize, to: *mut f32) {
            copy::<S, f32, f32>(row, to, count)
        }
        unsafe fn rounded_words<S: Simd>(rows: [*const f32; 2], count: usize, to: *mut f32) {
            Self::words::<S>(rows, count, to)
        }
    }
    #[inline(always)]
    fn get(self) -> f32 {
        self
    }
    #[inline(always)]
    fn of(value: f32) -> f32 {
        value
    }
}

impl Element for Bf16 {
    const PER_WORD: usize = 2;
    const ZERO: Bf16 = Bf16::from_bits(0);
    /// The greatest denormal number.
    const UP_TO_ZERO: f32 = f32::from_bits(0x007f_ffff);
    /// The midpoint between 6 and the number below it, a tie that rounds to 6, which is even.
    const FROM_SIX: f32 = 6.0 - 1.0 / 64.0;
    inlined! {
        unsafe fn load<S: Simd>(p: *const Bf16) -> S::V { S::load_bf16(p.cast()) }
        unsafe fn store<S: Simd>(p: *mut Bf16, v: S::V) { S::store_bf16(p.cast(), v) }
        unsafe fn stream<S: Simd>(p: *mut Bf16, v: S::V) { S::stream_bf16(p.cast(), v) }
        unsafe fn multiply_add<S: Simd>(a: S::V, b: S::V, c: S::V) -> S::V { S::dot(a, b, c) }
        unsafe fn word<S: Simd>(first: S::V, second: S::V) -> S::V { S::pair(first, second) }
        // The upper half of a word is the value in f32.
        unsafe fn rounded<S: Simd>(v: S::V) -> S::V { S::pair(S::splat(0.0), v) }
        unsafe fn words<S: Simd>([low, high]: [*const Bf16; 2], count: usize, to: *mut f32) {
            let at = |i: usize| S::store(to.add(i), S::interleave(low.add(i).cast(), high.add(i).cast()));
            let mut i = 0;
            while i + S::LANES <= count {
                at(i);
                i += S::LANES;
            }
            // The last vector overlaps the one before, and stays inside the rows.
            if i < count && count >= S::LANES {
                at(count - S::LANES);
                return;
            }
            while i < count {
                Scalar::store(to.add(i), Scalar::interleave(low.add(i).cast(), high.add(i).cast()));
                i += 1;
            }
        }
        unsafe fn rounded_words<S: Simd>([low, high]: [*const f32; 2], count: usize, to: *mut f32) {
            let mut i = 0;
            while i + S::LANES <= count {
                S::store(to.add(i), S::pair(S::load(low.add(i)), S::load(high.add(i))));
                i += S::LANES;
            }
            while i < count {
                Scalar::store(to.add(i), Scalar::pair(Scalar::load(low.add(i)), Scalar::load(high.add(i))));
                i += 1;
            }
        }
    }
    #[inline(always)]
    fn get(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn of(value: f32) -> Bf16 {
        Bf16::from_f32(value)
    }
}

inlined! {
    /// Four vectors that follow each other.
    pub(crate) unsafe fn load_four<E: Element, S: Simd>(from: Region<E>, index: usize) -> [S::V; 4] {
        [0, 1, 2, 3].map(|vector| E::load::<S>(from.at(index + vector * S::LANES, S::LANES)))
    }

    /// Writes four vectors, one after the other.
    pub(crate) unsafe fn store_four<E: Element, S: Simd>(to: Region<E>, index: usize, values: [S::V; 4]) {
        for (vector, value) in values.into_iter().enumerate() {
            E::store::<S>(to.at(index + vector * S::LANES, S::LANES), value);
        }
    }
}

/// Copies `len` values, rounding or widening them if the types differ.
///
/// # Safety
/// Both are valid for `len` values and do not overlap; the level of `S` is available.
#[inline(always)]
pub(crate) unsafe fn copy<S: Simd, X: Element, Y: Element>(from: *const X, to: *mut Y, len: usize) {
    // SAFETY: the caller's promise; the last vector overlaps the one before, and stays inside both.
    unsafe {
        if len < S::LANES {
            if X::DTYPE == Y::DTYPE {
                return copy_few(from, to.cast(), len);
            }
            for i in 0..len {
                *to.add(i) = Y::of((*from.add(i)).get());
            }
            return;
        }
        let mut i = 0;
        while i + S::LANES <= len {
            Y::store::<S>(to.add(i), X::load::<S>(from.add(i)));
            i += S::LANES;
        }
        if i < len {
            Y::store::<S>(to.add(len - S::LANES), X::load::<S>(from.add(len - S::LANES)));
        }
    }
}

/// Copies fewer than 16 values, such as a few pixels of three channels.
///
/// # Safety
/// As for [`copy`].
#[inline(always)]
unsafe fn copy_few<X: Copy>(from: *const X, to: *mut X, len: usize) {
    // SAFETY: the caller's promise; the last eight overlap the first, and stay inside both.
    unsafe {
        if len < 8 {
            (0..len).for_each(|i| *to.add(i) = *from.add(i));
            return;
        }
        for at in [0, len - 8] {
            let eight = from.add(at).cast::<[X; 8]>().read_unaligned();
            to.add(at).cast::<[X; 8]>().write_unaligned(eight);
        }
    }
}

#[cfg(test)]
#[path = "element_tests.rs"]
mod tests;
