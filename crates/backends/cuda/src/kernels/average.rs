//! Averages over the steps and running statistics: `kernels/average.cu`. Nothing changes after a failure.

use enmasse_graph::Scaling;
use enmasse_tensor::DType;

use super::operands::{FAILURE, STEP, count, float_count, scaling};
use super::{blocks, kernel, pass};
use crate::work::Argument::{Change, F32, Read};
use crate::work::{Constants, Kernel, Span};

/// Moves `averages` towards `values`, which have the same order. The first update copies. `scaled` says which steps are
/// updates, if not all.
pub(crate) fn average(decay: f32, values: Span, averages: Span, scaled: Option<Scaling<Span>>) -> Kernel {
    let elements = float_count(values);
    let mut arguments = vec![Read(values), Change(averages), STEP, Read(FAILURE)];
    arguments.extend(scaling(scaled));
    arguments.extend([count(elements), F32((1.0 - f64::from(decay)) as f32)]);
    kernel("average", pass(elements, DType::F32), arguments)
}

/// Sets `values` and `slow`, which have the same order, to what lies between them, in a step of Lookahead.
pub(crate) fn lookahead(values: Span, slow: Span) -> Kernel {
    let elements = float_count(values);
    let arguments = vec![Change(values), Change(slow), STEP, Read(FAILURE), count(elements)];
    kernel("lookahead", pass(elements, DType::F32), arguments)
}

/// The running statistics of a batch norm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    pub momentum: f32,
    /// `[2,C]`: means, then variances.
    pub update: Span,
    pub mean: Span,
    pub variance: Span,
}

/// Moves all running statistics of a step towards their updates. `None` without any. Updates are in one memory, and
/// statistics in one memory.
pub(crate) fn running_update(norms: &[Running], constants: &mut Constants) -> Option<Kernel> {
    let updates = norms.iter().map(|norm| norm.update).reduce(Span::hull)?;
    let running = norms.iter().flat_map(|norm| [norm.mean, norm.variance]).reduce(Span::hull)?;
    let mut table = Vec::new();
    for norm in norms {
        let spans = [(norm.update, updates), (norm.mean, running), (norm.variance, running)];
        for (span, hull) in spans {
            table.extend((((span.place.offset - hull.place.offset) / size_of::<f32>()) as u64).to_ne_bytes());
        }
        table.extend((float_count(norm.mean) as u32).to_ne_bytes());
        table.extend(norm.momentum.to_ne_bytes());
    }
    let most = norms.iter().map(|norm| float_count(norm.mean)).max()?;
    let [x, ..] = blocks(most);
    let arguments = vec![Read(constants.add(&table)), Read(FAILURE), Read(updates), Change(running)];
    Some(kernel("running_update", [x, norms.len() as u32, 1], arguments))
}

#[cfg(test)]
#[path = "average_tests.rs"]
mod tests;
