//! The engines of libraries that compute instructions.

use enmasse_graph::{Op, Plan};

use crate::CudaError;
use crate::gpu::Gpu;
use crate::ops::conv2d::convolution_of;
use crate::ops::linear::matmul_problem;

/// The name of the engine for an instruction; "" if none computes it.
pub(crate) fn engine_of(plan: &Plan, index: usize, gpu: &Gpu) -> Result<String, CudaError> {
    let node = &plan.instructions[index];
    let chosen = chosen(plan, index)?;
    if matches!(node.op, Op::LinearForward(_) | Op::LinearBackwardData(_) | Op::LinearBackwardWeights(_)) {
        return Ok(gpu.matmuls.facts(&matmul_problem(plan, node)?)?.0);
    }
    let engine = convolution_of(plan, node, chosen, &gpu.engines)?;
    Ok(engine.map_or_else(String::new, |engine| engine.name()))
}

/// The engine that the plan chooses for an instruction. An error if no engine of cuDNN computes it.
pub(super) fn chosen(plan: &Plan, index: usize) -> Result<Option<&str>, CudaError> {
    let node = &plan.instructions[index];
    let chosen = plan.algorithms.get(&index);
    match (chosen, &node.op) {
        (Some(name), Op::Conv2d(_) | Op::Conv2dBackwardData(_) | Op::Conv2dBackwardWeights(_)) => Ok(Some(name)),
        (Some(name), _) => {
            let layer = &node.layer;
            let name = name.escape_default();
            Err(CudaError::Unsupported(format!("layer {layer}: the gpu has no algorithm {name} for {}", node.op)))
        }
        (None, _) => Ok(None),
    }
}
