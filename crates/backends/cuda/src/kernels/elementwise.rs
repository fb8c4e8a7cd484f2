//! Passes over all elements of activations or matrices.

use enmasse_graph::{Activation, Function};
use enmasse_tensor::DType;

use crate::kernels::operands::STEP;
use crate::kernels::{blocks, kernel, named, pass};
use crate::work::Argument::{F32, Read, U32, U64, Write};
use crate::work::{Argument, Kernel, Span};

/// `(images / 255 - mean) / std` for each channel of `[pixels, 3]` bytes. With one mean and std the result is
/// `[pixels, 1]`, from the first channel.
pub(crate) fn normalize(dtype: DType, images: Span, y: Span, mean: &[f32], std: &[f32]) -> Kernel {
    let elements = y.bytes / dtype.size();
    // The same line through two points; a single channel's factors stand for all.
    let of = |i: usize| {
        let i = i.min(mean.len() - 1);
        let (mean, std) = (f64::from(mean[i]), f64::from(std[i]));
        [1.0 / (255.0 * std), -mean / std].map(|factor| F32(factor as f32))
    };
    let [[scale0, shift0], [scale1, shift1], [scale2, shift2]] = [0, 1, 2].map(of);
    let name = if mean.len() == 1 { "normalize_grey" } else { "normalize" };
    let factors = [scale0, scale1, scale2, shift0, shift1, shift2];
    let arguments = [&[Read(images), Write(y), U64(elements as u64)][..], &factors].concat();
    kernel(named(name, dtype), pass(elements, dtype), arguments)
}

/// The same values in another type. `from` and `to` are not both bf16.
pub(crate) fn cast(from: DType, x: Span, to: DType, y: Span) -> Kernel {
    each(format!("cast_{from}_to_{to}"), DType::F32, &[x], y, y.bytes / to.size(), &[])
}

/// `c = a + b`; `c` may lie over `a`.
pub(crate) fn add(dtype: DType, a: Span, b: Span, c: Span) -> Kernel {
    each(named("add", dtype), dtype, &[a, b], c, c.bytes / dtype.size(), &[])
}

/// `c = a * b`; `c` may lie over `a`.
pub(crate) fn multiply(dtype: DType, a: Span, b: Span, c: Span) -> Kernel {
    each(named("multiply", dtype), dtype, &[a, b], c, c.bytes / dtype.size(), &[])
}

/// The activation of `x`; `y` may lie over it.
pub(crate) fn activate(dtype: DType, activation: Activation, x: Span, y: Span) -> Kernel {
    each(named("rectify", dtype), dtype, &[x], y, y.bytes / dtype.size(), &[F32(ceiling(activation))])
}

/// `dy` where the activation passed `y`, else 0; `dx` may lie over `dy`.
pub(crate) fn activate_backward(dtype: DType, activation: Activation, dy: Span, y: Span, dx: Span) -> Kernel {
    each(named("rectify_backward", dtype), dtype, &[dy, y], dx, dx.bytes / dtype.size(), &[F32(ceiling(activation))])
}

/// The value at which an activation cuts off.
pub(super) fn ceiling(activation: Activation) -> f32 {
    match activation {
        Activation::Relu => f32::INFINITY,
        Activation::Relu6 => 6.0,
    }
}

/// The function of `x`; `y` may lie over it.
pub(crate) fn map(dtype: DType, function: Function, x: Span, y: Span) -> Kernel {
    let (code, first, second) = code(function);
    let numbers = [U32(code), F32(first), F32(second)];
    let elements = y.bytes / dtype.size();
    Kernel { grid: blocks(elements), ..each(named("map", dtype), dtype, &[x], y, elements, &numbers) }
}

/// `dy` times the function's derivative at `x`; `dx` may lie over `dy`.
pub(crate) fn map_backward(dtype: DType, function: Function, dy: Span, x: Span, dx: Span) -> Kernel {
    let (code, first, _) = code(function);
    let numbers = [U32(code), F32(first)];
    let elements = dx.bytes / dtype.size();
    Kernel { grid: blocks(elements), ..each(named("map_backward", dtype), dtype, &[dy, x], dx, elements, &numbers) }
}

/// The number of a function in function.cu, and its attributes.
fn code(function: Function) -> (u32, f32, f32) {
    match function {
        Function::Affine { scale, shift } => (0, scale, shift),
        Function::Exp => (1, 0.0, 0.0),
        Function::Log => (2, 0.0, 0.0),
        Function::Power(exponent) => (3, exponent, 0.0),
        Function::ClampMin(minimum) => (4, minimum, 0.0),
    }
}

/// Each element times `1 / (1 - probability)` or 0, by the random stream of `key`, the step's epoch and the sample's index;
/// `y` may lie over `x`. `indices` are i64, one for each sample.
pub(crate) fn dropout(dtype: DType, key: [u32; 2], probability: f32, x: Span, indices: Span, y: Span) -> Kernel {
    let samples = indices.bytes / DType::I64.size();
    let elements = y.bytes / dtype.size() / samples.max(1);
    let groups = elements.div_ceil(4) * samples;
    let factor = (1.0 / (1.0 - f64::from(probability))) as f32;
    let operands = [Read(x), Read(indices), STEP, Write(y), U64(elements as u64), U64(groups as u64)];
    let numbers = [U32(key[0]), U32(key[1]), F32(probability), F32(factor)];
    kernel(named("dropout", dtype), blocks(groups), [&operands[..], &numbers].concat())
}

/// A pass from operands to one result of equally many elements. A thread takes 16 bytes of `dtype` at a time.
fn each(name: String, dtype: DType, operands: &[Span], result: Span, elements: usize, numbers: &[Argument]) -> Kernel {
    let mut arguments: Vec<Argument> = operands.iter().map(|&operand| Read(operand)).collect();
    arguments.extend([Write(result), U64(elements as u64)]);
    arguments.extend(numbers);
    kernel(name, pass(elements, dtype), arguments)
}

#[cfg(test)]
#[path = "elementwise_tests.rs"]
mod tests;
