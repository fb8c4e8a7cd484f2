//! Loss scaling: `kernels/loss_scale.cu`, and what it says to kernels that change state: `kernels/scaling.h`.

use enmasse_graph::Scaling;
use enmasse_tensor::DType;

use super::operands::{FAILURE, SCRATCH, count, float_count, floats, one_block};
use super::{blocks, kernel, pass};
use crate::work::Argument::{Change, F32, Read, Write};
use crate::work::{Argument, Kernel, Span};

/// `Scaling` in `scaling.h`.
pub(super) fn scaling(scaling: Option<Scaling<Span>>) -> [Argument; 2] {
    [scaling.map(|scaling| scaling.unscale), scaling.map(|scaling| scaling.skipped_steps)].map(Argument::optional)
}

/// Every element times the factor; `y` may be `x`.
pub(crate) fn scale(x: Span, factor: Span, y: Span) -> Kernel {
    let elements = float_count(x);
    let to = if x == y { Change(y) } else { Write(y) };
    let arguments = vec![Read(x), Read(factor), to, count(elements)];
    kernel("scale", pass(elements, DType::F32), arguments)
}

/// The factor that undoes the scale, or 0 if an element of `values` is not finite, and the scale.
pub(crate) fn unscale(values: Span, scale: Span, unscale: Span) -> [Kernel; 2] {
    let elements = float_count(values);
    let grid = blocks(elements.div_ceil(16));
    let blocks = grid[0] as usize;
    let zeros = floats(SCRATCH, 0, blocks);
    let of_blocks = vec![Read(values), Write(zeros), count(elements)];
    let parts = kernel("finite_parts", grid, of_blocks);
    let whole = vec![Read(zeros), Read(scale), Write(unscale), count(blocks)];
    [parts, one_block("unscale", whole)]
}

/// How the scale changes after a step: factors and good steps as in [`enmasse_graph::Op::UpdateScale`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScaleRule {
    pub growth: f32,
    pub backoff: f32,
    pub interval: u32,
}

/// Changes the scale and the counts of good and of skipped steps: `state`. Nothing changes after a failure.
pub(crate) fn update_scale(rule: ScaleRule, unscale: Span, state: [Span; 3]) -> Kernel {
    let mut arguments = vec![Read(unscale), Read(FAILURE)];
    arguments.extend(state.map(Change));
    arguments.extend([rule.growth, rule.interval as f32, rule.backoff].map(F32));
    Kernel { name: "update_scale".into(), grid: [1; 3], block: 32, arguments }
}

#[cfg(test)]
#[path = "loss_scale_tests.rs"]
mod tests;
