//! Moving averages and running statistics: `kernels/average.cu`. Nothing changes after a failure.

use enmasse_tensor::DType;

use super::operands::{FAILURE, STEP, count, float_count};
use super::{THREADS, blocks, pass};
use crate::work::{Argument, Kernel, Span};

/// Moves `averages` towards `values`, which have the same order. The first step copies.
pub(crate) fn average(decay: f32, values: Span, averages: Span) -> Kernel {
    let elements = float_count(values);
    let arguments = vec![
        Argument::Read(values),
        Argument::Change(averages),
        STEP,
        Argument::Read(FAILURE),
        count(elements),
        Argument::F32((1.0 - f64::from(decay)) as f32),
    ];
    Kernel { name: "average".into(), grid: pass(elements, DType::F32), block: THREADS, arguments }
}

/// Moves the running statistics towards `update` `[2,C]`.
pub(crate) fn running_update(momentum: f32, update: Span, mean: Span, variance: Span) -> Kernel {
    let channels = float_count(mean);
    let arguments = vec![
        Argument::Read(update),
        Argument::Read(FAILURE),
        Argument::Change(mean),
        Argument::Change(variance),
        count(channels),
        Argument::F32(momentum),
    ];
    Kernel { name: "running_update".into(), grid: blocks(channels), block: THREADS, arguments }
}

#[cfg(test)]
#[path = "average_tests.rs"]
mod tests;
