//! Biases of rows, and their gradients.

use crate::kernels::rows::{Reduction, Rows};
use crate::kernels::{THREADS, named};
use crate::work::{Argument, Kernel, Span};

/// `y = x + bias` for each channel; `y` may lie over `x`.
pub(crate) fn bias(size: Rows, x: Span, bias: Span, y: Span) -> Kernel {
    let operands = [Argument::Read(x), Argument::Read(bias), Argument::Write(y)];
    let arguments = [&operands[..], &size.arguments()].concat();
    Kernel { name: named("bias", size.dtype), grid: size.pass(), block: THREADS, arguments }
}

/// The sum of `dy` over rows, for each channel.
pub(crate) fn bias_backward(size: Rows, dy: Span, sums: Span) -> Vec<Kernel> {
    let names = [&named("bias_backward", size.dtype), "bias_backward_combine"];
    Reduction::new(size).kernels(names, &[Argument::Read(dy)], &[], &[Argument::Write(sums)], 1)
}

#[cfg(test)]
#[path = "bias_tests.rs"]
mod tests;
