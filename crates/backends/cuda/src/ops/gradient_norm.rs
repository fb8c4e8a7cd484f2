//! The norm of all gradients: `kernels/norm.cu`.

use enmasse_graph::ops::GradientNorm;

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::operands::{SCRATCH, count, float_count, floats, one_block};
use crate::kernels::{blocks, kernel};
use crate::work::Argument::{Read, Write};
use crate::work::{Argument, Kernel, Span};

impl OnCuda for GradientNorm {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        let gradients = o.gradients(usize::from(self.scaled)).ok_or_else(|| o.unsupported())?;
        let scale = self.scaled.then(|| o.input(o.node.inputs.len() - 1));
        Ok(computed(gradient_norm(gradients, scale, o.output(0))))
    }
}

/// The root of the sum of the squares of `gradients`, divided by `scale` if there is one. They are adjacent; the padding
/// between them is zero.
fn gradient_norm(gradients: Span, scale: Option<Span>, norm: Span) -> [Kernel; 2] {
    let elements = float_count(gradients);
    let grid = blocks(elements.div_ceil(16));
    let blocks = grid[0] as usize;
    let sums = floats(SCRATCH, 0, blocks);
    let of_blocks = vec![Read(gradients), Argument::optional(scale), Write(sums), count(elements)];
    let root = vec![Read(sums), Write(norm), count(blocks)];
    let squares = kernel("gradient_squares", grid, of_blocks);
    [squares, one_block("gradient_norm", root)]
}

#[cfg(test)]
#[path = "gradient_norm_tests.rs"]
mod tests;
