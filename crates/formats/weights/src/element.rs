//! Element types of tensors in files, and their values as f32.

use half::{bf16, f16};

/// An element type of weights in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    BF16,
    /// IEEE single precision.
    F32,
    /// IEEE double precision; rounded to f32.
    F64,
    /// Signed.
    I8,
    /// Signed.
    I16,
    /// Signed; rounded beyond 2^24.
    I32,
    /// Signed; rounded beyond 2^24.
    I64,
    /// Unsigned.
    U8,
    /// Unsigned.
    U16,
    /// Unsigned; rounded beyond 2^24.
    U32,
    /// Unsigned; rounded beyond 2^24.
    U64,
    /// One byte; 0 or 1.
    Bool,
}

/// The order of an element's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByteOrder {
    Little,
    Big,
}

/// Each type with its name in safetensors, its dtype in PyTorch, and the class of PyTorch's storage for it.
const NAMES: [(ElementType, &str, &str, &str); 13] = [
    (ElementType::F16, "F16", "float16", "HalfStorage"),
    (ElementType::BF16, "BF16", "bfloat16", "BFloat16Storage"),
    (ElementType::F32, "F32", "float32", "FloatStorage"),
    (ElementType::F64, "F64", "float64", "DoubleStorage"),
    (ElementType::I8, "I8", "int8", "CharStorage"),
    (ElementType::I16, "I16", "int16", "ShortStorage"),
    (ElementType::I32, "I32", "int32", "IntStorage"),
    (ElementType::I64, "I64", "int64", "LongStorage"),
    (ElementType::U8, "U8", "uint8", "ByteStorage"),
    (ElementType::U16, "U16", "uint16", ""),
    (ElementType::U32, "U32", "uint32", ""),
    (ElementType::U64, "U64", "uint64", ""),
    (ElementType::Bool, "BOOL", "bool", "BoolStorage"),
];

impl ElementType {
    /// Its name in safetensors files.
    pub const fn name(self) -> &'static str {
        NAMES[self as usize].1
    }

    /// Size of an element in bytes.
    pub const fn size(self) -> usize {
        match self {
            ElementType::I8 | ElementType::U8 | ElementType::Bool => 1,
            ElementType::F16 | ElementType::BF16 | ElementType::I16 | ElementType::U16 => 2,
            ElementType::F32 | ElementType::I32 | ElementType::U32 => 4,
            ElementType::F64 | ElementType::I64 | ElementType::U64 => 8,
        }
    }

    pub(crate) fn of_safetensors(name: &str) -> Option<Self> {
        NAMES.iter().find(|entry| entry.1 == name).map(|entry| entry.0)
    }

    pub(crate) fn of_torch(dtype: &str) -> Option<Self> {
        NAMES.iter().find(|entry| entry.2 == dtype).map(|entry| entry.0)
    }

    pub(crate) fn of_storage(class: &str) -> Option<Self> {
        NAMES.iter().find(|entry| !class.is_empty() && entry.3 == class).map(|entry| entry.0)
    }

    /// Appends the values of complete elements. `bytes` is left in little-endian order.
    pub(crate) fn decode(self, order: ByteOrder, bytes: &mut [u8], values: &mut Vec<f32>) {
        if order == ByteOrder::Big {
            bytes.chunks_exact_mut(self.size()).for_each(<[u8]>::reverse);
        }
        fn each<const N: usize>(bytes: &[u8], values: &mut Vec<f32>, value: impl Fn([u8; N]) -> f32) {
            values.extend(bytes.as_chunks::<N>().0.iter().map(|&bytes| value(bytes)));
        }
        match self {
            ElementType::F16 => each(bytes, values, |bytes| f16::from_le_bytes(bytes).to_f32()),
            ElementType::BF16 => each(bytes, values, |bytes| bf16::from_le_bytes(bytes).to_f32()),
            ElementType::F32 => each(bytes, values, f32::from_le_bytes),
            ElementType::F64 => each(bytes, values, |bytes| f64::from_le_bytes(bytes) as f32),
            ElementType::I8 => each(bytes, values, |bytes| i8::from_le_bytes(bytes).into()),
            ElementType::I16 => each(bytes, values, |bytes| i16::from_le_bytes(bytes).into()),
            ElementType::I32 => each(bytes, values, |bytes| i32::from_le_bytes(bytes) as f32),
            ElementType::I64 => each(bytes, values, |bytes| i64::from_le_bytes(bytes) as f32),
            ElementType::U8 => each(bytes, values, |[byte]| byte.into()),
            ElementType::U16 => each(bytes, values, |bytes| u16::from_le_bytes(bytes).into()),
            ElementType::U32 => each(bytes, values, |bytes| u32::from_le_bytes(bytes) as f32),
            ElementType::U64 => each(bytes, values, |bytes| u64::from_le_bytes(bytes) as f32),
            ElementType::Bool => each(bytes, values, |[byte]| f32::from(u8::from(byte != 0))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_in_both_orders() {
        let check = |element: ElementType, little: &[u8], expected: f32| {
            assert_eq!(little.len(), element.size());
            let mut big: Vec<u8> = little.iter().rev().copied().collect();
            let mut values = Vec::new();
            element.decode(ByteOrder::Little, &mut little.to_vec(), &mut values);
            element.decode(ByteOrder::Big, &mut big, &mut values);
            assert_eq!(values, [expected, expected], "{element:?}");
        };
        check(ElementType::F16, &[0, 0xC0], -2.0);
        check(ElementType::F16, &[1, 0], 2f32.powi(-24));
        check(ElementType::F16, &[0, 0xFC], f32::NEG_INFINITY);
        check(ElementType::BF16, &[0x80, 0x3F], 1.0);
        check(ElementType::F32, &1.5f32.to_le_bytes(), 1.5);
        check(ElementType::F64, &0.1f64.to_le_bytes(), 0.1);
        check(ElementType::I8, &[0xFE], -2.0);
        check(ElementType::I16, &(-300i16).to_le_bytes(), -300.0);
        check(ElementType::I32, &70_000i32.to_le_bytes(), 70_000.0);
        check(ElementType::I64, &(-1i64 << 40).to_le_bytes(), -(2f32.powi(40)));
        check(ElementType::U8, &[0xFE], 254.0);
        check(ElementType::U16, &65_000u16.to_le_bytes(), 65_000.0);
        check(ElementType::U32, &(1u32 << 31).to_le_bytes(), 2f32.powi(31));
        check(ElementType::U64, &(1u64 << 63).to_le_bytes(), 2f32.powi(63));
        check(ElementType::Bool, &[7], 1.0);
    }

    #[test]
    fn names_identify_their_type() {
        for (element, safetensors, dtype, storage) in NAMES {
            assert_eq!((element.name(), ElementType::of_safetensors(safetensors)), (safetensors, Some(element)));
            assert_eq!(ElementType::of_torch(dtype), Some(element));
            assert_eq!(ElementType::of_storage(storage), (!storage.is_empty()).then_some(element));
        }
    }
}
