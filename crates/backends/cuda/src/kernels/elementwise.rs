//! Passes over all elements of activations or matrices.

use enmasse_graph::Activation;
use enmasse_tensor::DType;

use crate::kernels::{kernel, named, pass};
use crate::work::Argument::{F32, Null, Read, U64, Write};
use crate::work::{Argument, Kernel, Span};

/// The same values in another type: to f32, or from it.
pub(crate) fn cast(from: DType, x: Span, to: DType, y: Span) -> Kernel {
    each(format!("cast_{from}_to_{to}"), DType::F32, &[x], y, y.bytes / to.size(), &[])
}

/// Ranges that [`cast_ranges`] takes at most: `RANGES` in `elementwise.cu`.
pub(crate) const RANGES: usize = 32;

/// Blocks for a range, of which most are small.
const BLOCKS_OF_A_RANGE: u32 = 132;

/// Pairs of ranges, each from the same values of 16 bits to f32.
pub(crate) fn cast_ranges(from: DType, ranges: &[[Span; 2]]) -> Kernel {
    let elements = |[_, to]: &[Span; 2]| to.bytes / size_of::<f32>();
    let column = |argument: &dyn Fn(&[Span; 2]) -> Argument, empty: Argument| {
        let mut arguments: Vec<Argument> = ranges.iter().map(argument).collect();
        arguments.resize(RANGES, empty);
        arguments
    };
    let [x, y] = [column(&|[x, _]| Read(*x), Null), column(&|[_, y]| Write(*y), Null)];
    let numbers = column(&|range| U64(elements(range) as u64), U64(0));
    let [blocks, ..] = pass(ranges.iter().map(elements).max().unwrap_or(0), DType::F32);
    let grid = [blocks.min(BLOCKS_OF_A_RANGE), ranges.len() as u32, 1];
    kernel(format!("cast_ranges_{from}_to_f32"), grid, [x, y, numbers].concat())
}

/// `c = a + b`; `c` may lie over `a`.
pub(crate) fn add(dtype: DType, a: Span, b: Span, c: Span) -> Kernel {
    each(named("add", dtype), dtype, &[a, b], c, c.bytes / dtype.size(), &[])
}

/// `c = a * b`; `c` may lie over `a`.
pub(crate) fn multiply(dtype: DType, a: Span, b: Span, c: Span) -> Kernel {
    each(named("multiply", dtype), dtype, &[a, b], c, c.bytes / dtype.size(), &[])
}

/// The ReLU of `x`; `y` may lie over it.
pub(crate) fn activate(dtype: DType, activation: Activation, x: Span, y: Span) -> Kernel {
    each(named("rectify", dtype), dtype, &[x], y, y.bytes / dtype.size(), &[F32(ceiling(activation))])
}

/// `dy` where the ReLU passed `y`, else 0; `dx` may lie over `dy`.
pub(crate) fn activate_backward(dtype: DType, activation: Activation, dy: Span, y: Span, dx: Span) -> Kernel {
    each(named("rectify_backward", dtype), dtype, &[dy, y], dx, dx.bytes / dtype.size(), &[F32(ceiling(activation))])
}

/// The value at which a ReLU cuts off.
pub(crate) fn ceiling(activation: Activation) -> f32 {
    if activation == Activation::Relu6 { 6.0 } else { f32::INFINITY }
}

/// A pass from operands to one result of equally many elements. A thread takes 16 bytes of `dtype` at a time.
pub(crate) fn each(
    name: String,
    dtype: DType,
    operands: &[Span],
    result: Span,
    elements: usize,
    numbers: &[Argument],
) -> Kernel {
    let mut arguments: Vec<Argument> = operands.iter().map(|&operand| Read(operand)).collect();
    arguments.extend([Write(result), U64(elements as u64)]);
    arguments.extend(numbers);
    kernel(name, pass(elements, dtype), arguments)
}

#[cfg(test)]
#[path = "elementwise_tests.rs"]
mod tests;
