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
        Ok(computed([map(o.activations(), *self, o.input(0), o.output(0))]))
    }
}

impl OnCuda for FunctionBackward {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([map_backward(o.activations(), self.0, o.input(0), o.input(1), o.output(0))]))
    }
}

/// The function of `x`; `y` may lie over it.
fn map(dtype: DType, function: Function, x: Span, y: Span) -> Kernel {
    let (code, first, second) = code(function);
    let numbers = [U32(code), F32(first), F32(second)];
    let elements = y.bytes / dtype.size();
    Kernel { grid: blocks(elements), ..each(named("map", dtype), dtype, &[x], y, elements, &numbers) }
}

/// `dy` times the function's derivative at `x`; `dx` may lie over `dy`.
fn map_backward(dtype: DType, function: Function, dy: Span, x: Span, dx: Span) -> Kernel {
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
        Function::Sigmoid => (5, 0.0, 0.0),
        Function::Silu => (6, 0.0, 0.0),
        Function::Gelu => (7, 0.0, 0.0),
        Function::HardSwish => (8, 0.0, 0.0),
    }
}

#[cfg(test)]
#[path = "function_tests.rs"]
mod tests;
