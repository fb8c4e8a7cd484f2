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
pub(crate) fn bias_backward(size: Rows, dy: Span, sums: Span) -> [Kernel; 2] {
    let reduction = Reduction::new(size);
    let partial = reduction.partial(1);
    let operands = [Argument::Read(dy), Argument::Write(partial)];
    let numbers = [reduction.channels(), reduction.chunk_count()];
    [
        reduction.chunks(named("bias_backward", size.dtype), &operands, &[]),
        reduction.combine("bias_backward_combine", &[Argument::Read(partial), Argument::Write(sums)], &numbers),
    ]
}

#[cfg(test)]
#[path = "bias_tests.rs"]
mod tests;
