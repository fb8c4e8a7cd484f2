//! Passes over all elements of activations or matrices.

use enmasse_graph::Activation;
use enmasse_tensor::DType;

use crate::kernels::{kernel, named, pass};
use crate::work::Argument::{F32, Read, U64, Write};
use crate::work::{Argument, Kernel, Span};

/// The same values in another type: to f32, or from it.
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
