//! Functions of one number, applied to each element: `kernels/function.cu`.

use enmasse_graph::ops::{Function, FunctionBackward};
use enmasse_tensor::DType;

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::elementwise::each;
use crate::kernels::{blocks, named};
use crate::work::Argument::{F32, U32};
use crate::work::{Kernel, Span};

impl OnCuda for Function {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([map(o.activations(), code(*self), o.input(0), o.output(0))]))
    }
}

impl OnCuda for FunctionBackward {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([map_backward(o.activations(), code(self.0), o.input(0), o.input(1), o.output(0))]))
    }
}

/// A function of function.cu.
#[derive(Clone, Copy, Debug)]
pub(super) struct Code {
    number: u32,
    first: f32,
    second: f32,
}

impl Code {
    /// A function without attributes.
    pub(super) const fn plain(number: u32) -> Self {
        Code { number, first: 0.0, second: 0.0 }
    }
}

/// The function of `x`; `y` may lie over it.
pub(super) fn map(dtype: DType, Code { number, first, second }: Code, x: Span, y: Span) -> Kernel {
    let numbers = [U32(number), F32(first), F32(second)];
    let elements = y.bytes / dtype.size();
    Kernel { grid: blocks(elements), ..each(named("map", dtype), dtype, &[x], y, elements, &numbers) }
}

/// `dy` times the function's derivative at `x`; `dx` may lie over `dy`.
pub(super) fn map_backward(dtype: DType, Code { number, first, .. }: Code, dy: Span, x: Span, dx: Span) -> Kernel {
    let numbers = [U32(number), F32(first)];
    let elements = dx.bytes / dtype.size();
    Kernel { grid: blocks(elements), ..each(named("map_backward", dtype), dtype, &[dy, x], dx, elements, &numbers) }
}

fn code(function: Function) -> Code {
    match function {
        Function::Affine { scale, shift } => Code { number: 0, first: scale, second: shift },
        Function::Exp => Code::plain(1),
        Function::Log => Code::plain(2),
        Function::Power(exponent) => Code { first: exponent, ..Code::plain(3) },
        Function::ClampMin(minimum) => Code { first: minimum, ..Code::plain(4) },
        Function::Sigmoid => Code::plain(5),
        Function::Gelu => Code::plain(7),
    }
}

#[cfg(test)]
#[path = "function_tests.rs"]
mod tests;
