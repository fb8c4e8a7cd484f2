//! The element types that cross crate boundaries: in plans, on the wire, and in files.

use std::fmt;

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// The upper half of an f32, [`crate::Bf16`]: activations and their gradients, in plans that store them so.
    /// Sums and products are computed in f32.
    Bf16,
    /// IEEE half precision, [`crate::F16`]: the same, in other plans.
    F16,
    /// IEEE single precision: parameters, activations, gradients.
    F32,
    /// IEEE double precision: the reference device, and sums of metrics.
    F64,
    /// Unsigned bytes: images, and positions inside a pooling window.
    U8,
    /// 32-bit integers: class labels.
    I32,
    /// 64-bit integers: sample indices and counts.
    I64,
}

impl DType {
    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            DType::U8 => 1,
            DType::Bf16 | DType::F16 => 2,
            DType::F32 | DType::I32 => 4,
            DType::F64 | DType::I64 => 8,
        }
    }

    /// The name used in plans, messages and error texts.
    pub const fn name(self) -> &'static str {
        match self {
            DType::Bf16 => "bf16",
            DType::F16 => "f16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::U8 => "u8",
            DType::I32 => "i32",
            DType::I64 => "i64",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What the rest of the workspace, and the kernels of every device, take for granted about the two types of 16 bits.
#[cfg(test)]
mod tests {
    use crate::{Bf16, F16};

    #[test]
    fn bf16_known_answers() {
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
        check(f32::from_bits(0x3f81_8000), 0x3f82);
        // The carry into the exponent, and from the largest finite value to infinity.
        check(f32::from_bits(0x3fff_8000), 0x4000);
        check(f32::from_bits(0x7f7f_7fff), 0x7f7f);
        check(f32::from_bits(0x7f7f_8000), 0x7f80);
        check(f32::INFINITY, 0x7f80);
        // Denormals: the smallest, its half (to even zero), a bit more; the largest becomes the smallest normal one.
        check(f32::from_bits(0x0001_0000), 0x0001);
        check(f32::from_bits(0x0000_8000), 0x0000);
        check(f32::from_bits(0x0000_8001), 0x0001);
        check(f32::from_bits(0x007f_ffff), 0x0080);
    }

    #[test]
    fn f16_known_answers() {
        let check = |value: f32, expected: u16| {
            for (value, expected) in [(value, expected), (-value, expected | 0x8000)] {
                assert_eq!(F16::from_f32(value).to_bits(), expected, "{value:e}");
            }
        };
        let least = 1.0 / (1 << 24) as f32;
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
        check(65519.996, 0x7bff);
        check(65520.0, 0x7c00);
        check(f32::MAX, 0x7c00);
        check(f32::INFINITY, 0x7c00);
        // Denormals: the smallest, its half (to even zero), a bit more; the largest becomes the smallest normal one.
        check(least, 0x0001);
        check(least / 2.0, 0x0000);
        check(f32::from_bits((least / 2.0).to_bits() + 1), 0x0001);
        check(1.5 * least, 0x0002);
        check(f32::from_bits(1), 0x0000);
        check(1023.75 * least, 0x0400);
    }

    #[test]
    fn the_nearest_of_all_values() {
        // Between every two positive neighbours, from zero to the largest; f32 has more than four further bits.
        let check = |largest: u16, value: fn(u16) -> f32, nearest: fn(f32) -> u16| {
            for bits in 0..largest {
                let low = value(bits);
                let high = value(bits + 1);
                for (sixteenths, expected) in [(7.0, bits), (8.0, bits + (bits & 1)), (9.0, bits + 1)] {
                    let between = low + (high - low) * (sixteenths / 16.0);
                    assert!(low < between && between < high);
                    assert_eq!(nearest(between), expected, "{between:e}");
                }
            }
        };
        check(0x7f7f, |bits| Bf16::from_bits(bits).to_f32(), |value| Bf16::from_f32(value).to_bits());
        check(0x7bff, |bits| F16::from_bits(bits).to_f32(), |value| F16::from_f32(value).to_bits());
    }

    #[test]
    fn nan_stays_nan_with_its_sign() {
        for bits in [0x7fc0_0000, 0x7f80_0001, 0x7fff_ffff, 0xffc0_0000, 0xff80_0001] {
            let value = f32::from_bits(bits);
            let (brain, half) = (Bf16::from_f32(value), F16::from_f32(value));
            assert!(brain.to_f32().is_nan() && half.to_f32().is_nan(), "{bits:#x}");
            assert_eq!([brain.to_bits() >> 15, half.to_bits() >> 15], [(bits >> 31) as u16; 2], "{bits:#x}");
        }
    }

    #[test]
    fn every_value_is_exact_in_f32() {
        for bits in 0..=u16::MAX {
            let brain = Bf16::from_bits(bits).to_f32();
            let half = F16::from_bits(bits).to_f32();
            assert!(brain.is_nan() || brain.to_bits() == u32::from(bits) << 16, "{bits:#x}: {brain}");
            assert!(brain.is_nan() || Bf16::from_f32(brain).to_bits() == bits, "{bits:#x}");
            let exponent = i32::from(bits >> 10 & 31);
            let fraction = f64::from(bits & 0x3ff);
            let size = match exponent {
                0 => fraction * 2f64.powi(-24),
                31 if fraction == 0.0 => f64::INFINITY,
                31 => f64::NAN,
                _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
            };
            let expected = if bits >> 15 == 1 { -size } else { size };
            assert!(
                half.is_nan() && size.is_nan() || f64::from(half).to_bits() == expected.to_bits(),
                "{bits:#x}: {half}"
            );
            assert!(half.is_nan() || F16::from_f32(half).to_bits() == bits, "{bits:#x}");
        }
    }
}
