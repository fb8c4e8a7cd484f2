//! Passes over all elements of maps or matrices.

use enmasse_tensor::DType;

use crate::kernels::{THREADS, named, pass};
use crate::work::{Argument, Kernel, Span};

/// `c = a + b`; `c` may lie over `a`.
pub(crate) fn add(dtype: DType, a: Span, b: Span, c: Span) -> Kernel {
    pair("add", dtype, a, b, c)
}

/// `c = a * b`; `c` may lie over `a`.
pub(crate) fn multiply(dtype: DType, a: Span, b: Span, c: Span) -> Kernel {
    pair("multiply", dtype, a, b, c)
}

fn pair(name: &str, dtype: DType, a: Span, b: Span, c: Span) -> Kernel {
    let elements = c.bytes / dtype.size();
    let operands = [Argument::Read(a), Argument::Read(b), Argument::Write(c)];
    Kernel {
        name: named(name, dtype),
        grid: pass(elements, dtype),
        block: THREADS,
        arguments: [&operands[..], &[Argument::U64(elements as u64)]].concat(),
    }
}

#[cfg(test)]
#[path = "elementwise_tests.rs"]
mod tests;
