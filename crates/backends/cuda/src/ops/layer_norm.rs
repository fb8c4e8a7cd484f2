//! Layer norm over rows of channels, and its gradients: `kernels/layer_norm.cu`.

use enmasse_graph::ops::{LayerNorm, LayerNormBackward, LayerNormReduce};

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::named;
use crate::kernels::operands::by_row;
use crate::kernels::rows::{Reduction, Rows};
use crate::work::Argument::{F32, Read, Write};
use crate::work::{Kernel, Span};

impl OnCuda for LayerNorm {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        let [x, weight, bias] = [0, 1, 2].map(|i| o.input(i));
        let [y, mean, inverse_std] = [0, 1, 2].map(|i| o.output(i));
        let operands = Forward { x, weight, bias, y, mean, inverse_std, epsilon: self.epsilon };
        Ok(computed([forward(o.rows(0)?, &operands)]))
    }
}

impl OnCuda for LayerNormBackward {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([backward(o.rows(0)?, &Gradient::of(o), o.input(4), o.output(0))]))
    }
}

impl OnCuda for LayerNormReduce {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([reduce(o.rows(0)?, &Gradient::of(o), o.output(0), o.output(1))]))
    }
}

/// The operands and results of a layer norm.
struct Forward {
    x: Span,
    /// `[C]`, as the next.
    weight: Span,
    bias: Span,
    y: Span,
    /// One for each row, as the next.
    mean: Span,
    inverse_std: Span,
    epsilon: f32,
}

/// The operands of a layer norm's gradients.
struct Gradient {
    dy: Span,
    x: Span,
    /// One for each row, as the next.
    mean: Span,
    inverse_std: Span,
}

impl Gradient {
    fn of(o: &Operands) -> Self {
        let [dy, x, mean, inverse_std] = [0, 1, 2, 3].map(|i| o.input(i));
        Gradient { dy, x, mean, inverse_std }
    }
}

/// Normalises every row.
fn forward(size: Rows, forward: &Forward) -> Kernel {
    let &Forward { x, weight, bias, y, mean, inverse_std, epsilon } = forward;
    let operands = [Read(x), Read(weight), Read(bias), Write(y), Write(mean), Write(inverse_std)];
    let arguments = [&operands[..], &size.arguments(), &[F32(epsilon)]].concat();
    by_row(&named("layer_norm", size.dtype), size.rows, size.channels, arguments)
}

/// The gradient of the input.
fn backward(size: Rows, gradient: &Gradient, weight: Span, dx: Span) -> Kernel {
    let &Gradient { dy, x, mean, inverse_std } = gradient;
    let operands = [Read(dy), Read(x), Read(mean), Read(inverse_std), Read(weight), Write(dx)];
    let arguments = [&operands[..], &size.arguments()].concat();
    by_row(&named("layer_norm_backward", size.dtype), size.rows, size.channels, arguments)
}

/// The gradients of bias and weight.
fn reduce(size: Rows, gradient: &Gradient, dbias: Span, dweight: Span) -> Kernel {
    let &Gradient { dy, x, mean, inverse_std } = gradient;
    let operands = [Read(dy), Read(x), Read(mean), Read(inverse_std)];
    let name = named("layer_norm_reduce", size.dtype);
    Reduction::new(size).kernel(name, &operands, &[Write(dbias), Write(dweight)], 2)
}

#[cfg(test)]
#[path = "layer_norm_tests.rs"]
mod tests;
