//! Convolutions and linear layers: by an engine of a library, with kernels around it for what the engine does not take.

use std::sync::Arc;

use enmasse_graph::{Node, Op, Plan, Precision, ValueId};
use enmasse_tensor::DType;

use super::operand::{Operands, unsupported};
use super::{rounded, scratch};
use crate::CudaError;
use crate::cublas_lt::{Matmul, MatmulProblem};
use crate::cudnn::{ConvolutionPlan, Direction, Problem};
use crate::engines::{Engines, Matmuls};
use crate::gpu::Gpu;
use crate::kernels::rows::Rows;
use crate::kernels::{bias, elementwise};
use crate::sequence::{Call, LibraryCall};
use crate::work::Span;

/// Workspaces begin at multiples of this many bytes.
const ALIGNMENT: usize = 256;

/// The name of the engine for an instruction; "" if none computes it.
pub(crate) fn engine_of(plan: &Plan, index: usize, gpu: &Gpu) -> Result<String, CudaError> {
    let (node, chosen) = (&plan.instructions[index], chosen(plan, index)?);
    if matches!(node.op, Op::Linear | Op::LinearBackwardData | Op::LinearBackwardWeights) {
        return Ok(gpu.matmuls.facts(&matmul_problem(plan, node)?)?.0);
    }
    let engine = convolution_of(plan, node, chosen, &gpu.engines)?;
    Ok(engine.map_or_else(String::new, |engine| engine.name()))
}

/// The engine that the plan chooses for an instruction. An error if no engine of cuDNN computes it.
pub(super) fn chosen(plan: &Plan, index: usize) -> Result<Option<&str>, CudaError> {
    let (node, chosen) = (&plan.instructions[index], plan.algorithms.get(&index));
    match (chosen, &node.op) {
        (Some(name), Op::Conv2d(_) | Op::Conv2dBackwardData(_) | Op::Conv2dBackwardWeights(_)) => Ok(Some(name)),
        (Some(name), _) => {
            let (layer, name) = (&node.layer, name.escape_default());
            Err(CudaError::Unsupported(format!("layer {layer}: the gpu has no algorithm {name} for {}", node.op)))
        }
        (None, _) => Ok(None),
    }
}

/// The engine of a convolution, or of one of its gradients: the one with a chosen name, or the best by cuDNN's estimate. `None` for
/// another operation.
pub(crate) fn convolution_of(
    plan: &Plan,
    node: &Node,
    chosen: Option<&str>,
    engines: &Engines,
) -> Result<Option<Arc<ConvolutionPlan>>, CudaError> {
    let Node { inputs, outputs, .. } = node;
    // What the engine would rather do, and what it does if cuDNN does not take that.
    let (fused, plain) = match node.op {
        // With the bias. For 16-bit activations cuDNN would compile such an engine for some seconds.
        Op::Conv2d(_) => {
            let fuses = inputs.len() > 2 && outputs.iter().all(|&id| plan.value(id).dtype == DType::F32);
            (fuses.then_some(Direction::Forward { bias: true }), Direction::Forward { bias: false })
        }
        // Add to what the result's place holds, if that is to be added.
        Op::Conv2dBackwardData(_) => {
            let adds = inputs.get(2).map(|&base| plan.slot(base)) == outputs.first().map(|&dx| plan.slot(dx));
            let fused = adds.then_some(Direction::BackwardData { accumulate: true });
            (fused, Direction::BackwardData { accumulate: false })
        }
        Op::Conv2dBackwardWeights(_) => (None, Direction::BackwardWeights),
        _ => return Ok(None),
    };
    let fused = fused.map(|direction| convolution_problem(plan, node, direction)).transpose()?;
    let problem = match fused.filter(|fused| engines.convolution(fused).is_ok()) {
        Some(fused) => fused,
        None => convolution_problem(plan, node, plain)?,
    };
    let Some(name) = chosen else { return engines.convolution(&problem).map(Some) };
    engines.named(&problem, name).map(Some).map_err(|error| {
        let (layer, name) = (&node.layer, name.escape_default());
        CudaError::Unsupported(format!(
            "layer {layer}: the engine {name} was chosen on another GPU or by another cuDNN, and is refused here \
             ({error}): continue with `tune = false`, or start a new run"
        ))
    })
}

/// A convolution, or one of its gradients, as cuDNN states it.
fn convolution_problem(plan: &Plan, node: &Node, direction: Direction) -> Result<Problem, CudaError> {
    let Node { inputs, outputs, .. } = node;
    let unsupported = || unsupported(plan, node);
    let [x, w, y] = match direction {
        Direction::Forward { .. } => [inputs.first(), inputs.get(1), outputs.first()],
        Direction::BackwardData { .. } => [outputs.first(), inputs.get(1), inputs.first()],
        Direction::BackwardWeights => [inputs.first(), outputs.first(), inputs.get(1)],
    };
    let shape = |id: Option<&ValueId>| {
        let shape = plan.shape(*id.ok_or_else(unsupported)?);
        <[usize; 4]>::try_from(&shape[..]).map_err(|_| unsupported())
    };
    let arithmetic = match x.map(|&id| plan.value(id).dtype) {
        Some(DType::F32) if plan.precision == Precision::Tf32 => Precision::Tf32,
        Some(DType::F32) => Precision::F32,
        Some(DType::Bf16) => Precision::Bf16,
        Some(DType::F16) => Precision::F16,
        _ => return Err(unsupported()),
    };
    match node.op {
        Op::Conv2d(conv) | Op::Conv2dBackwardData(conv) | Op::Conv2dBackwardWeights(conv) => {
            Ok(Problem { direction, x: shape(x)?, w: shape(w)?, y: shape(y)?, conv, arithmetic })
        }
        _ => Err(unsupported()),
    }
}

impl Operands<'_> {
    /// The work of a convolution, or of one of its gradients.
    pub fn convolution(&self, engines: &Engines) -> Result<Vec<Call>, CudaError> {
        let engine = convolution_of(self.plan, self.node, self.chosen, engines)?.ok_or_else(|| self.unsupported())?;
        match engine.problem().direction {
            Direction::Forward { bias } => self.forward(&engine, bias),
            Direction::BackwardData { accumulate } => self.backward_data(&engine, accumulate),
            Direction::BackwardWeights => self.backward_weights(&engine),
        }
    }

    /// The weights as they are multiplied.
    fn multiplied(&self, weights: Span) -> Span {
        if self.activations() == DType::F32 { weights } else { rounded(weights) }
    }

    fn forward(&self, engine: &ConvolutionPlan, adds_bias: bool) -> Result<Vec<Call>, CudaError> {
        let (x, w, y, bias) = (self.input(0)?, self.multiplied(self.input(1)?), self.output(0)?, self.optional(2));
        if adds_bias {
            return Ok(vec![call(engine, [x, w, y], bias, 0)]);
        }
        let mut calls = vec![call(engine, [x, w, y], None, 0)];
        if let Some(bias) = bias {
            let [n, h, w, channels] = engine.problem().y;
            let size = Rows { rows: n * h * w, channels, dtype: self.activations() };
            calls.push(Call::Kernel(bias::bias(size, y, bias, y)));
        }
        Ok(calls)
    }

    fn backward_data(&self, engine: &ConvolutionPlan, adds: bool) -> Result<Vec<Call>, CudaError> {
        let (dy, w, dx, base) = (self.input(0)?, self.multiplied(self.input(1)?), self.output(0)?, self.optional(2));
        let Some(base) = base.filter(|_| !adds) else { return Ok(vec![call(engine, [dx, w, dy], None, 0)]) };
        // The engine must not write over what is still to be added.
        let (alone, used) = if base.place == dx.place { (scratch(0, dx.bytes), dx.bytes) } else { (dx, 0) };
        let add = elementwise::add(self.activations(), alone, base, dx);
        Ok(vec![call(engine, [alone, w, dy], None, used), Call::Kernel(add)])
    }

    fn backward_weights(&self, engine: &ConvolutionPlan) -> Result<Vec<Call>, CudaError> {
        let (x, dy, dw) = (self.input(0)?, self.input(1)?, self.output(0)?);
        if engine.weights == DType::F32 {
            return Ok(vec![call(engine, [x, dw, dy], None, 0)]);
        }
        let narrow = scratch(0, dw.bytes / 2);
        let cast = elementwise::cast(self.activations(), narrow, DType::F32, dw);
        Ok(vec![call(engine, [x, narrow, dy], None, narrow.bytes), Call::Kernel(cast)])
    }

    /// The work of a linear layer, or of one of its gradients.
    pub fn matmul(&self, matmuls: &Matmuls) -> Result<Vec<Call>, CudaError> {
        let problem = matmul_problem(self.plan, self.node)?;
        let (first, second, result) = (self.input(0)?, self.input(1)?, self.output(0)?);
        let [x, w, y] = match problem.matmul {
            Matmul::Forward { .. } => [first, second, result],
            Matmul::BackwardData => [result, second, first],
            Matmul::BackwardWeights => [first, result, second],
        };
        let (engine, workspace) = matmuls.facts(&problem)?;
        let bias = if self.node.op == Op::Linear { self.optional(2) } else { None };
        Ok(vec![Call::Matmul(LibraryCall { problem, engine, x, w, y, bias, workspace: scratch(0, workspace) })])
    }
}

/// A linear layer, or one of its gradients, as cuBLASLt states it.
fn matmul_problem(plan: &Plan, node: &Node) -> Result<MatmulProblem, CudaError> {
    let unsupported = || unsupported(plan, node);
    let shape = |id: Option<&ValueId>| match plan.shape(*id.ok_or_else(unsupported)?)[..] {
        [rows, columns] => Ok((rows, columns)),
        _ => Err(unsupported()),
    };
    let (rows, columns) = shape(node.inputs.first())?;
    let (matmul, inputs, outputs) = match node.op {
        Op::Linear => {
            let bias = node.inputs.len() > 2;
            (Matmul::Forward { bias }, columns, shape(node.outputs.first())?.1)
        }
        Op::LinearBackwardData => (Matmul::BackwardData, shape(node.outputs.first())?.1, columns),
        Op::LinearBackwardWeights => (Matmul::BackwardWeights, columns, shape(node.inputs.get(1))?.1),
        _ => return Err(unsupported()),
    };
    Ok(MatmulProblem { matmul, rows, inputs, outputs, tf32: plan.precision == Precision::Tf32 })
}

/// The call of an engine, whose workspace comes after `used` bytes of scratch.
fn call(engine: &ConvolutionPlan, [x, w, y]: [Span; 3], bias: Option<Span>, used: usize) -> Call {
    let workspace = scratch(used.next_multiple_of(ALIGNMENT), usize::try_from(engine.workspace).unwrap_or(usize::MAX));
    Call::Convolution(LibraryCall { problem: *engine.problem(), engine: engine.name(), x, w, y, bias, workspace })
}
