//! The 16-bit float with f32's range, in which `--precision bf16` stores activations and their gradients.

use std::cmp::Ordering;
use std::fmt;

/// The upper half of an f32: one sign bit, eight bits of exponent (bias 127), seven of fraction, so 8 significant bits.
///
/// It is for storage only: sums and products are computed in f32. Any bits are a value, and zeroed memory holds zeros.
///
/// ```
/// use enmasse_tensor::Bf16;
/// assert_eq!(Bf16::from_f32(3.14159).to_f32(), 3.140625);
/// ```
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Bf16(u16);

impl Bf16 {
    /// The value with these bits.
    pub const fn from_bits(bits: u16) -> Self {
        Bf16(bits)
    }

    /// The bits.
    pub const fn to_bits(self) -> u16 {
        self.0
    }

    /// The nearest value; of two equally near ones the one with the even fraction. From halfway beyond the largest
    /// finite value the result is infinity. Denormals are kept; NaN stays NaN with its sign.
    #[inline(always)]
    pub const fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        if value.is_nan() {
            // Quiet, because a NaN with fraction bits only in the lower half would become infinity.
            return Bf16((bits >> 16) as u16 | 0x0040);
        }
        // Just below half of the last kept place, or exactly half if that place is odd. The carry correctly continues
        // into the exponent.
        let half = 0x7fff + (bits >> 16 & 1);
        Bf16((bits.wrapping_add(half) >> 16) as u16)
    }

    /// The same value; the conversion is exact.
    #[inline(always)]
    pub const fn to_f32(self) -> f32 {
        f32::from_bits((self.0 as u32) << 16)
    }
}

impl PartialEq for Bf16 {
    fn eq(&self, other: &Self) -> bool {
        self.to_f32() == other.to_f32()
    }
}

impl PartialOrd for Bf16 {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.to_f32().partial_cmp(&other.to_f32())
    }
}

impl fmt::Debug for Bf16 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_f32())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: f32 = f32::from_bits(0x0001_0000);

    #[test]
    fn known_answers() {
        let check = |value: f32, expected: u16| {
            for (value, expected) in [(value, expected), (-value, expected | 0x8000)] {
                assert_eq!(Bf16::from_f32(value).to_bits(), expected, "{value:e}");
            }
        };
        check(0.0, 0x0000);
        check(1.0, 0x3f80);
        check(std::f32::consts::PI, 0x4049);
        // Below, at and above the midpoint between neighbours: ties go to the even one.
        check(f32::from_bits(0x3f80_7fff), 0x3f80);
        check(f32::from_bits(0x3f80_8000), 0x3f80);
        check(f32::from_bits(0x3f80_8001), 0x3f81);
        check(f32::from_bits(0x3f81_7fff), 0x3f81);
        check(f32::from_bits(0x3f81_8000), 0x3f82);
        // The carry into the exponent, and from the largest finite value to infinity.
        check(f32::from_bits(0x3fff_8000), 0x4000);
        check(f32::from_bits(0x7f7f_7fff), 0x7f7f);
        check(f32::from_bits(0x7f7f_8000), 0x7f80);
        check(f32::MAX, 0x7f80);
        check(f32::INFINITY, 0x7f80);
        // Denormals: the smallest, its half (to even zero), a bit more; the largest becomes the smallest normal one.
        check(MIN, 0x0001);
        check(MIN / 2.0, 0x0000);
        check(f32::from_bits(0x0000_8001), 0x0001);
        check(f32::from_bits(1), 0x0000);
        check(f32::from_bits(0x007f_ffff), 0x0080);
    }

    #[test]
    fn nan_stays_nan_with_its_sign() {
        for bits in [0x7fc0_0000, 0x7f80_0001, 0x7fff_ffff, 0xffc0_0000, 0xff80_0001] {
            let found = Bf16::from_f32(f32::from_bits(bits));
            assert!(found.to_f32().is_nan(), "{bits:#x}");
            assert_eq!(found.to_bits() >> 15, (bits >> 31) as u16, "{bits:#x}");
        }
    }

    #[test]
    fn every_value_round_trips() {
        for bits in 0..=u16::MAX {
            let value = Bf16::from_bits(bits);
            let back = Bf16::from_f32(value.to_f32());
            assert!(back.to_bits() == bits || (value.to_f32().is_nan() && back.to_f32().is_nan()), "{bits:#x}");
        }
    }

    #[test]
    fn the_nearest_of_all_values() {
        // Between every two positive neighbours, from zero to the largest.
        for bits in 0..0x7f7f_u16 {
            let [low, high] = [bits, bits + 1].map(|bits| Bf16::from_bits(bits).to_f32());
            for (sixteenths, expected) in [(7, bits), (8, bits + (bits & 1)), (9, bits + 1)] {
                // Exact: the sixteenths lie in the lower half of the bits.
                let value = f32::from_bits(low.to_bits() + (sixteenths << 12));
                assert!(low < value && value < high);
                assert_eq!(Bf16::from_f32(value).to_bits(), expected, "{value:e}");
            }
        }
    }

    #[test]
    fn compares_as_numbers() {
        let [nan, zero, minus_zero, one] = [f32::NAN, 0.0, -0.0, 1.0].map(Bf16::from_f32);
        assert_eq!(zero, minus_zero);
        assert_ne!(nan, nan);
        assert!(zero < one && nan.partial_cmp(&one).is_none());
    }
}
