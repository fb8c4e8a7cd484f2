//! Convolutions and linear layers: by an engine of a library, with kernels around it for what the engine does not take.

use std::sync::Arc;

use enmasse_graph::{Conv2d, Node, Op, Plan, Precision, ValueId};
use enmasse_tensor::DType;

use super::operand::{Operands, unsupported};
use super::{rounded, scratch};
use crate::CudaError;
use crate::cublas_lt::{Matmul, MatmulProblem};
use crate::cudnn::{Arithmetic, ConvolutionPlan, DataType, Direction, Problem};
use crate::engines::{Engines, Matmuls};
use crate::gpu::Gpu;
use crate::kernels::rows::Rows;
use crate::kernels::{bias, elementwise};
use crate::sequence::{Call, Convolution, MatmulCall};
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
    Ok(engine.map_or_else(String::new, |(_, engine)| engine.name()))
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

/// The problem and the engine of a convolution, or of one of its gradients: the engine with a chosen name, or the best by cuDNN's
/// estimate. `None` for another operation.
pub(crate) fn convolution_of(
    plan: &Plan,
    node: &Node,
    chosen: Option<&str>,
    engines: &Engines,
) -> Result<Option<(Problem, Arc<ConvolutionPlan>)>, CudaError> {
    let convolution = Convolved { plan, node, chosen };
    Ok(Some(match node.op {
        Op::Conv2d(conv) => convolution.forward_plan(&conv, engines)?,
        Op::Conv2dBackwardData(conv) => convolution.backward_data_plan(&conv, engines)?,
        Op::Conv2dBackwardWeights(conv) => convolution.backward_weights_plan(&conv, engines)?,
        _ => return Ok(None),
    }))
}

/// A convolution, or one of its gradients, as cuDNN states it.
struct Convolved<'a> {
    plan: &'a Plan,
    node: &'a Node,
    /// The engine that was chosen by measuring.
    chosen: Option<&'a str>,
}

impl Convolved<'_> {
    fn problem(
        &self,
        direction: Direction,
        [x, w, y]: [Option<&ValueId>; 3],
        conv: &Conv2d,
    ) -> Result<Problem, CudaError> {
        let (plan, node) = (self.plan, self.node);
        let unsupported = || unsupported(plan, node);
        let shape = |id: Option<&ValueId>| {
            let shape = plan.shape(*id.ok_or_else(unsupported)?);
            <[usize; 4]>::try_from(&shape[..]).map_err(|_| unsupported())
        };
        let dtype = x.map(|&id| plan.value(id).dtype);
        let arithmetic = match dtype {
            Some(DType::F32) if plan.precision == Precision::Tf32 => Arithmetic::Tf32,
            Some(DType::F32) => Arithmetic::F32,
            Some(DType::Bf16) => Arithmetic::Bf16,
            Some(DType::F16) => Arithmetic::F16,
            _ => return Err(unsupported()),
        };
        Ok(Problem { direction, x: shape(x)?, w: shape(w)?, y: shape(y)?, conv: *conv, arithmetic })
    }

    /// The forward's problem, and its engine: one that adds the bias, or else one without. For 16-bit activations cuDNN would compile
    /// the former for some seconds.
    fn forward_plan(&self, conv: &Conv2d, engines: &Engines) -> Result<(Problem, Arc<ConvolutionPlan>), CudaError> {
        let Node { inputs, outputs, .. } = self.node;
        let fuses = inputs.len() > 2 && outputs.iter().all(|&id| self.plan.value(id).dtype == DType::F32);
        let fused = if fuses { Some(self.forward(conv, true)?) } else { None };
        self.solve(fused, self.forward(conv, false)?, engines)
    }

    /// The first problem if there is one that cuDNN takes, or else the second, and its engine.
    fn solve(
        &self,
        fused: Option<Problem>,
        plain: Problem,
        engines: &Engines,
    ) -> Result<(Problem, Arc<ConvolutionPlan>), CudaError> {
        let problem = fused.filter(|fused| engines.convolution(fused).is_ok()).unwrap_or(plain);
        let Some(name) = self.chosen else { return Ok((problem, engines.convolution(&problem)?)) };
        let plan = engines.named(&problem, name).map_err(|error| {
            let (layer, name) = (&self.node.layer, name.escape_default());
            CudaError::Unsupported(format!(
                "layer {layer}: the engine {name} was chosen on another GPU or by another cuDNN, and is refused here \
                 ({error}): continue with `tune = false`, or start a new run"
            ))
        })?;
        Ok((problem, plan))
    }

    fn forward(&self, conv: &Conv2d, bias: bool) -> Result<Problem, CudaError> {
        let Node { inputs, outputs, .. } = self.node;
        self.problem(Direction::Forward { bias }, [inputs.first(), inputs.get(1), outputs.first()], conv)
    }

    /// The problem of the input's gradient, and its engine: one that adds to what the result's place holds, if that is to be
    /// added, or else one that does not.
    fn backward_data_plan(
        &self,
        conv: &Conv2d,
        engines: &Engines,
    ) -> Result<(Problem, Arc<ConvolutionPlan>), CudaError> {
        let Node { inputs, outputs, .. } = self.node;
        let adds = inputs.get(2).map(|&base| self.plan.slot(base)) == outputs.first().map(|&dx| self.plan.slot(dx));
        let added = if adds { Some(self.backward_data(conv, true)?) } else { None };
        self.solve(added, self.backward_data(conv, false)?, engines)
    }

    fn backward_data(&self, conv: &Conv2d, accumulate: bool) -> Result<Problem, CudaError> {
        let Node { inputs, outputs, .. } = self.node;
        let values = [outputs.first(), inputs.get(1), inputs.first()];
        self.problem(Direction::BackwardData { accumulate }, values, conv)
    }

    fn backward_weights_plan(
        &self,
        conv: &Conv2d,
        engines: &Engines,
    ) -> Result<(Problem, Arc<ConvolutionPlan>), CudaError> {
        let Node { inputs, outputs, .. } = self.node;
        let values = [inputs.first(), outputs.first(), inputs.get(1)];
        self.solve(None, self.problem(Direction::BackwardWeights, values, conv)?, engines)
    }
}

impl Operands<'_> {
    fn convolved(&self) -> Convolved<'_> {
        Convolved { plan: self.plan, node: self.node, chosen: self.chosen }
    }

    /// The work of a convolution, or of one of its gradients.
    pub fn convolution(&self, engines: &Engines) -> Result<Vec<Call>, CudaError> {
        match &self.node.op {
            Op::Conv2d(conv) => self.forward(conv, engines),
            Op::Conv2dBackwardData(conv) => self.backward_data(conv, engines),
            Op::Conv2dBackwardWeights(conv) => self.backward_weights(conv, engines),
            _ => Err(self.unsupported()),
        }
    }

    /// The weights as they are multiplied.
    fn multiplied(&self, weights: Span) -> Span {
        if self.activations() == DType::F32 { weights } else { rounded(weights) }
    }

    fn forward(&self, conv: &Conv2d, engines: &Engines) -> Result<Vec<Call>, CudaError> {
        let (x, w, y, bias) = (self.input(0)?, self.multiplied(self.input(1)?), self.output(0)?, self.optional(2));
        let (problem, plan) = self.convolved().forward_plan(conv, engines)?;
        if problem.direction == (Direction::Forward { bias: true }) {
            return Ok(vec![call(&plan, problem, [x, w, y], bias, 0)]);
        }
        let mut calls = vec![call(&plan, problem, [x, w, y], None, 0)];
        if let Some(bias) = bias {
            let [n, h, w, channels] = problem.y;
            let size = Rows { rows: n * h * w, channels, dtype: self.activations() };
            calls.push(Call::Kernel(bias::bias(size, y, bias, y)));
        }
        Ok(calls)
    }

    fn backward_data(&self, conv: &Conv2d, engines: &Engines) -> Result<Vec<Call>, CudaError> {
        let (dy, w, dx, base) = (self.input(0)?, self.multiplied(self.input(1)?), self.output(0)?, self.optional(2));
        let (problem, plan) = self.convolved().backward_data_plan(conv, engines)?;
        let adds = problem.direction == (Direction::BackwardData { accumulate: true });
        let Some(base) = base.filter(|_| !adds) else { return Ok(vec![call(&plan, problem, [dx, w, dy], None, 0)]) };
        // The engine must not write over what is still to be added.
        let (alone, used) = if base.place == dx.place { (scratch(0, dx.bytes), dx.bytes) } else { (dx, 0) };
        let add = elementwise::add(self.activations(), alone, base, dx);
        Ok(vec![call(&plan, problem, [alone, w, dy], None, used), Call::Kernel(add)])
    }

    fn backward_weights(&self, conv: &Conv2d, engines: &Engines) -> Result<Vec<Call>, CudaError> {
        let (x, dy, dw) = (self.input(0)?, self.input(1)?, self.output(0)?);
        let (problem, plan) = self.convolved().backward_weights_plan(conv, engines)?;
        if plan.weights == DataType::F32 {
            return Ok(vec![call(&plan, problem, [x, dw, dy], None, 0)]);
        }
        let narrow = scratch(0, dw.bytes / 2);
        let cast = elementwise::cast(self.activations(), narrow, DType::F32, dw);
        Ok(vec![call(&plan, problem, [x, narrow, dy], None, narrow.bytes), Call::Kernel(cast)])
    }
}

impl Operands<'_> {
    /// The work of a linear layer, or of one of its gradients.
    pub fn matmul(&self, matmuls: &Matmuls) -> Result<Vec<Call>, CudaError> {
        let problem = matmul_problem(self.plan, self.node)?;
        let (first, second, result) = (self.input(0)?, self.input(1)?, self.output(0)?);
        let [x, w, y] = match problem.matmul {
            Matmul::Forward { .. } => [first, second, result],
            Matmul::BackwardData => [result, second, first],
            Matmul::BackwardWeights => [first, result, second],
        };
        let (algorithm, workspace) = matmuls.facts(&problem)?;
        let bias = if self.node.op == Op::Linear { self.optional(2) } else { None };
        Ok(vec![Call::Matmul(MatmulCall { problem, algorithm, x, w, y, bias, workspace: scratch(0, workspace) })])
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
fn call(plan: &ConvolutionPlan, problem: Problem, [x, w, y]: [Span; 3], bias: Option<Span>, used: usize) -> Call {
    let workspace = scratch(used.next_multiple_of(ALIGNMENT), usize::try_from(plan.workspace).unwrap_or(usize::MAX));
    Call::Convolution(Convolution { problem, engine: plan.name(), x, w, y, bias, workspace })
}
