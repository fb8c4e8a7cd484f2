//! IEEE half precision, in which `--precision f16` stores activations and their gradients.

use std::cmp::Ordering;
use std::fmt;

/// One sign bit, five bits of exponent (bias 15), ten of fraction, so 11 significant bits. The largest finite value is 65504,
/// the smallest normal one 2^-14, the smallest above zero 2^-24.
///
/// It is for storage only: sums and products are computed in f32. Any bits are a value, and zeroed memory holds zeros.
///
/// ```
/// use enmasse_tensor::F16;
/// assert_eq!(F16::from_f32(3.14159).to_f32(), 3.140625);
/// assert_eq!(F16::from_f32(1e5).to_f32(), f32::INFINITY);
/// ```
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct F16(u16);

/// What the exponent of an f32 is larger by than that of the same f16.
const BIAS: u32 = 127 - 15;

impl F16 {
    /// The value with these bits.
    pub const fn from_bits(bits: u16) -> Self {
        F16(bits)
    }

    /// The bits.
    pub const fn to_bits(self) -> u16 {
        self.0
    }

    /// The nearest value; of two equally near ones the one with the even fraction. From halfway beyond the largest
    /// finite value the result is infinity. Values below 2^-14 are denormal; NaN stays NaN with its sign.
    #[inline(always)]
    pub const fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        let (sign, size) = ((bits >> 16) as u16 & 0x8000, bits & 0x7fff_ffff);
        let rounded = match size {
            // Multiples of 2^-24. The sum is exact or rounded as is right, since the last place of 0.5 is 2^-24.
            0..0x3880_0000 => (f32::from_bits(size) + 0.5).to_bits() - 0.5f32.to_bits(),
            // Just below half of the last kept place, or exactly half if that place is odd. The carry correctly continues
            // into the exponent, and to infinity.
            0x3880_0000..0x4780_0000 => (size - (BIAS << 23) + 0xfff + (size >> 13 & 1)) >> 13,
            0x4780_0000..=0x7f80_0000 => 0x7c00,
            _ => 0x7e00,
        };
        F16(sign | rounded as u16)
    }

    /// The same value; the conversion is exact.
    #[inline(always)]
    pub const fn to_f32(self) -> f32 {
        let (sign, size) = ((self.0 as u32 & 0x8000) << 16, self.0 as u32 & 0x7fff);
        let bits = match size {
            // The sum is exact, and its fraction counts multiples of 2^-24.
            0..0x400 => (f32::from_bits(0.5f32.to_bits() + size) - 0.5).to_bits(),
            0x400..0x7c00 => (size << 13) + (BIAS << 23),
            // Infinity and NaN.
            _ => 0x7f80_0000 | size << 13,
        };
        f32::from_bits(sign | bits)
    }
}

impl PartialEq for F16 {
    fn eq(&self, other: &Self) -> bool {
        self.to_f32() == other.to_f32()
    }
}

impl PartialOrd for F16 {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.to_f32().partial_cmp(&other.to_f32())
    }
}

impl fmt::Debug for F16 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_f32())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: f32 = 1.0 / (1 << 24) as f32;

    #[test]
    fn known_answers() {
        let check = |value: f32, expected: u16| {
            for (value, expected) in [(value, expected), (-value, expected | 0x8000)] {
                assert_eq!(F16::from_f32(value).to_bits(), expected, "{value:e}");
            }
        };
        check(0.0, 0x0000);
        check(1.0, 0x3c00);
        check(std::f32::consts::PI, 0x4248);
        // Below, at and above the midpoint between neighbours: ties go to the even one.
        check(f32::from_bits(0x3f80_0fff), 0x3c00);
        check(f32::from_bits(0x3f80_1000), 0x3c00);
        check(f32::from_bits(0x3f80_1001), 0x3c01);
        check(f32::from_bits(0x3f80_3000), 0x3c02);
        // The carry into the exponent, and from the largest finite value to infinity.
        check(f32::from_bits(0x3fff_f000), 0x4000);
        check(65504.0, 0x7bff);
        check(65519.996, 0x7bff);
        check(65520.0, 0x7c00);
        check(65536.0, 0x7c00);
        check(f32::MAX, 0x7c00);
        check(f32::INFINITY, 0x7c00);
        // Denormals: the smallest, its half (to even zero), a bit more; the largest becomes the smallest normal one.
        check(MIN, 0x0001);
        check(MIN / 2.0, 0x0000);
        check(f32::from_bits((MIN / 2.0).to_bits() + 1), 0x0001);
        check(1.5 * MIN, 0x0002);
        check(f32::from_bits(1), 0x0000);
        check(1023.75 * MIN, 0x0400);
    }

    #[test]
    fn nan_stays_nan_with_its_sign() {
        for bits in [0x7fc0_0000, 0x7f80_0001, 0x7fff_ffff, 0xffc0_0000, 0xff80_0001] {
            let found = F16::from_f32(f32::from_bits(bits));
            assert!(found.to_f32().is_nan(), "{bits:#x}");
            assert_eq!(found.to_bits() >> 15, (bits >> 31) as u16, "{bits:#x}");
        }
    }

    #[test]
    fn every_value_round_trips() {
        for bits in 0..=u16::MAX {
            let value = F16::from_bits(bits);
            let (sign, exponent, fraction) = (bits >> 15, i32::from(bits >> 10 & 31), f64::from(bits & 0x3ff));
            let size = match exponent {
                0 => fraction * 2f64.powi(-24),
                31 if fraction == 0.0 => f64::INFINITY,
                31 => f64::NAN,
                _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
            };
            let (expected, found) = (if sign == 1 { -size } else { size }, f64::from(value.to_f32()));
            assert!(found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(), "{bits:#x}: {found}");
            let back = F16::from_f32(value.to_f32());
            assert!(back.to_bits() == bits || found.is_nan() && back.to_f32().is_nan(), "{bits:#x}");
        }
    }

    #[test]
    fn the_nearest_of_all_values() {
        // Between every two positive neighbours, from zero to the largest.
        for bits in 0..0x7bff_u16 {
            let [low, high] = [bits, bits + 1].map(|bits| F16::from_bits(bits).to_f32());
            for (sixteenths, expected) in [(7.0, bits), (8.0, bits + (bits & 1)), (9.0, bits + 1)] {
                // Exact: f32 has more than four further bits.
                let value = low + (high - low) * (sixteenths / 16.0);
                assert!(low < value && value < high);
                assert_eq!(F16::from_f32(value).to_bits(), expected, "{value:e}");
            }
        }
    }

    #[test]
    fn compares_as_numbers() {
        let [nan, zero, minus_zero, one] = [f32::NAN, 0.0, -0.0, 1.0].map(F16::from_f32);
        assert_eq!(zero, minus_zero);
        assert_ne!(nan, nan);
        assert!(zero < one && nan.partial_cmp(&one).is_none());
    }
}
