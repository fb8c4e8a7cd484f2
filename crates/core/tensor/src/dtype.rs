//! The element types that cross crate boundaries: in plans, on the wire, and in files.

use std::fmt;

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// The 16-bit float with f32's range, [`crate::Bf16`]: activations and their gradients, in plans that store them
    /// so.
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
