//! Biases of rows, and their gradients.

use crate::kernels::rows::{Reduction, Rows};
use crate::kernels::{kernel, named};
use crate::work::Argument::{Read, Write};
use crate::work::{Kernel, Span};

/// `y = x + bias` for each channel; `y` may lie over `x`.
pub(crate) fn bias(size: Rows, x: Span, bias: Span, y: Span) -> Kernel {
    let arguments = [&[Read(x), Read(bias), Write(y)][..], &size.arguments()].concat();
    kernel(named("bias", size.dtype), size.pass(), arguments)
}

/// The sum of `dy` over rows, for each channel.
pub(crate) fn bias_backward(size: Rows, dy: Span, sums: Span) -> Kernel {
    Reduction::new(size).kernel(named("bias_backward", size.dtype), &[Read(dy)], &[Write(sums)], 1)
}

#[cfg(test)]
#[path = "bias_tests.rs"]
mod tests;
