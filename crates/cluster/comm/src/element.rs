//! Element types that can be sent and summed, and how two values combine.

use half::{bf16 as Bf16, f16 as F16};

/// Evaluates an expression with the element type of a [`DType`]: `with_element!(dtype, T => size_of::<T>())`.
macro_rules! with_element {
    ($dtype:expr, $type:ident => $body:expr) => {
        match $dtype {
            $crate::element::DType::Bf16 => {
                type $type = half::bf16;
                $body
            }
            $crate::element::DType::F16 => {
                type $type = half::f16;
                $body
            }
            $crate::element::DType::F32 => {
                type $type = f32;
                $body
            }
            $crate::element::DType::F64 => {
                type $type = f64;
                $body
            }
            $crate::element::DType::I32 => {
                type $type = i32;
                $body
            }
            $crate::element::DType::I64 => {
                type $type = i64;
                $body
            }
            $crate::element::DType::U8 => {
                type $type = u8;
                $body
            }
        }
    };
}

pub(crate) use with_element;

/// The element types of collectives. `enmasse_tensor` has the same ones for plans; this crate is a package without any other of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// The upper half of an f32.
    Bf16,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
    /// Unsigned bytes.
    U8,
    /// 32-bit integers.
    I32,
    /// 64-bit integers.
    I64,
}

impl DType {
    /// Bytes per element.
    pub const fn size(self) -> usize {
        with_element!(self, T => size_of::<T>())
    }

    /// The name used in messages.
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

mod sealed {
    pub trait Sealed {}
}

/// How values of the ranks are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Their sum, added in the fixed tree of [`crate::tree_fold`]. Integers wrap around; bf16 and f16 round every addition.
    Sum,
    /// Their product, in the same tree, with the same rounding and wrapping.
    Product,
    /// The greatest; NaN wins over every other value.
    Max,
    /// The least; NaN wins over every other value.
    Min,
}

impl Reduction {
    /// The name used in messages.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Reduction::Sum => "sum",
            Reduction::Product => "product",
            Reduction::Max => "max",
            Reduction::Min => "min",
        }
    }
}

/// An element type of collectives. Sealed: every bit pattern must be a valid value, which receiving relies on.
pub trait Element: sealed::Sealed + Copy + Default + PartialOrd + Send + Sync + 'static {
    /// Its name on the wire.
    const DTYPE: DType;

    /// `left + right`; wraps around for integers.
    fn sum(left: Self, right: Self) -> Self;

    /// `left * right`; wraps around for integers.
    fn product(left: Self, right: Self) -> Self;

    /// The greater value, or the NaN if one is; the right one if they are equal.
    fn max(left: Self, right: Self) -> Self;

    /// The lesser value, or the NaN if one is; the right one if they are equal.
    fn min(left: Self, right: Self) -> Self;
}

macro_rules! element {
    ($type:ty, $dtype:ident, $sum:expr, $product:expr) => {
        impl sealed::Sealed for $type {}

        // `x != x` holds only for NaN; for integers the compiler removes it.
        #[allow(clippy::eq_op)]
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;

            #[inline(always)]
            fn sum(left: Self, right: Self) -> Self {
                let sum: fn($type, $type) -> $type = $sum;
                sum(left, right)
            }

            #[inline(always)]
            fn product(left: Self, right: Self) -> Self {
                let product: fn($type, $type) -> $type = $product;
                product(left, right)
            }

            #[inline(always)]
            fn max(left: Self, right: Self) -> Self {
                if left > right || left != left { left } else { right }
            }

            #[inline(always)]
            fn min(left: Self, right: Self) -> Self {
                if left < right || left != left { left } else { right }
            }
        }
    };
}

element!(Bf16, Bf16, |left, right| Bf16::from_f32(left.to_f32() + right.to_f32()), |left, right| Bf16::from_f32(
    left.to_f32() * right.to_f32()
));
element!(F16, F16, |left, right| F16::from_f32(left.to_f32() + right.to_f32()), |left, right| F16::from_f32(
    left.to_f32() * right.to_f32()
));
element!(f32, F32, |left, right| left + right, |left, right| left * right);
element!(f64, F64, |left, right| left + right, |left, right| left * right);
element!(i32, I32, i32::wrapping_add, i32::wrapping_mul);
element!(i64, I64, i64::wrapping_add, i64::wrapping_mul);
element!(u8, U8, u8::wrapping_add, u8::wrapping_mul);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn not_a_number_wins() {
        for (left, right) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
            assert!(<f32 as Element>::max(left, right).is_nan() && <f32 as Element>::min(left, right).is_nan());
        }
    }

    #[test]
    fn extremes() {
        assert_eq!((<i32 as Element>::max(-1, 2), <i32 as Element>::min(-1, 2)), (2, -1));
        assert_eq!(<i64 as Element>::sum(i64::MAX, 1), i64::MIN);
        assert_eq!(<u8 as Element>::sum(255, 2), 1);
        assert_eq!((<u8 as Element>::product(16, 17), <i32 as Element>::product(-3, 4)), (16, -12));
        let [one, little] = [1.0, 1.0 / 256.0].map(Bf16::from_f32);
        assert_eq!((<Bf16 as Element>::sum(one, little), <Bf16 as Element>::max(little, one)), (one, one));
        let [largest, half] = [65504.0, 16.0].map(F16::from_f32);
        assert_eq!(<F16 as Element>::sum(largest, half).to_f32(), f32::INFINITY);
        assert_eq!(<F16 as Element>::product(largest, half).to_f32(), f32::INFINITY);
        assert_eq!(<Bf16 as Element>::product(little, little).to_f32(), 1.0 / 65536.0);
    }
}
