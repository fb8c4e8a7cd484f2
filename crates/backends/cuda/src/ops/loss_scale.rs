//! Loss scaling for f16: `kernels/loss_scale.cu`.

use enmasse_graph::ops::{Scale, Unscale, UpdateScale};
use enmasse_tensor::DType;

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::operands::{FAILURE, SCRATCH, count, float_count, floats, one_block};
use crate::kernels::{blocks, kernel, pass};
use crate::work::Argument::{Change, F32, Read, Write};
use crate::work::{Kernel, Span};

impl OnCuda for Scale {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([scale(o.input(0), o.input(1), o.output(0))]))
    }
}

impl OnCuda for Unscale {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        let values = match (o.gradients(1), o.node.inputs.len()) {
            (Some(gradients), _) => gradients,
            // Their norm.
            (None, 2) => o.input(0),
            _ => return Err(o.unsupported()),
        };
        Ok(computed(unscale(values, o.input(o.node.inputs.len() - 1), o.output(0))))
    }
}

impl OnCuda for UpdateScale {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([update_scale(self, o.input(0), [1, 2, 3].map(|index| o.input(index)))]))
    }
}

/// Every element times the factor; `y` may be `x`.
fn scale(x: Span, factor: Span, y: Span) -> Kernel {
    let elements = float_count(x);
    let to = if x == y { Change(y) } else { Write(y) };
    let arguments = vec![Read(x), Read(factor), to, count(elements)];
    kernel("scale", pass(elements, DType::F32), arguments)
}

/// The factor that undoes the scale, or 0 if an element of `values` is not finite, and the scale.
fn unscale(values: Span, scale: Span, unscale: Span) -> [Kernel; 2] {
    let elements = float_count(values);
    let grid = blocks(elements.div_ceil(16));
    let blocks = grid[0] as usize;
    let zeros = floats(SCRATCH, 0, blocks);
    let of_blocks = vec![Read(values), Write(zeros), count(elements)];
    let parts = kernel("finite_parts", grid, of_blocks);
    let whole = vec![Read(zeros), Read(scale), Write(unscale), count(blocks)];
    [parts, one_block("unscale", whole)]
}

/// Changes the scale and the counts of good and of skipped steps: `state`. Nothing changes after a failure.
fn update_scale(rule: &UpdateScale, unscale: Span, state: [Span; 3]) -> Kernel {
    let mut arguments = vec![Read(unscale), Read(FAILURE)];
    arguments.extend(state.map(Change));
    arguments.extend([rule.growth, rule.interval as f32, rule.backoff].map(F32));
    Kernel { name: "update_scale".into(), grid: [1; 3], block: 32, arguments }
}

#[cfg(test)]
#[path = "loss_scale_tests.rs"]
mod tests;
