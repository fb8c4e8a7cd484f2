//! Linear layers, and their gradients.

use enmasse_graph::ops::{BiasBackward, LinearBackwardData, LinearBackwardWeights, LinearForward};
use enmasse_graph::{Node, Op, Plan, ValueId};
use enmasse_tensor::DType;

use super::conv2d::multiplied;
use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::CudaError;
use crate::cublas_lt::{Matmul, MatmulProblem};
use crate::kernels::bias;
use crate::kernels::rows::Rows;
use crate::lower::{arithmetic, scratch, unsupported};
use crate::sequence::{Call, LibraryCall};
use crate::work::Span;

impl OnCuda for LinearForward {
    fn lower(&self, o: &Operands, lowering: &mut Lowering) -> Lowered {
        let problem = matmul_problem(o.plan, o.node)?;
        let (y, bias) = (o.output(0), o.optional(2));
        let adds = problem.matmul == (Matmul::Forward { bias: true });
        let xwy = [o.input(0), multiplied(o, o.input(1)), y];
        let mut calls = vec![matmul(lowering, problem, xwy, bias.filter(|_| adds))?];
        let size = Rows { rows: problem.rows, channels: problem.outputs, dtype: o.activations() };
        calls.extend(bias.filter(|_| !adds).map(|bias| Call::Kernel(bias::bias(size, y, bias, y))));
        Ok(computed(calls))
    }
}

impl OnCuda for LinearBackwardData {
    fn lower(&self, o: &Operands, lowering: &mut Lowering) -> Lowered {
        let xwy = [o.output(0), multiplied(o, o.input(1)), o.input(0)];
        Ok(computed([matmul(lowering, matmul_problem(o.plan, o.node)?, xwy, None)?]))
    }
}

impl OnCuda for LinearBackwardWeights {
    fn lower(&self, o: &Operands, lowering: &mut Lowering) -> Lowered {
        let xwy = [o.input(0), o.output(0), o.input(1)];
        Ok(computed([matmul(lowering, matmul_problem(o.plan, o.node)?, xwy, None)?]))
    }
}

impl OnCuda for BiasBackward {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([bias::bias_backward(o.rows(0)?, o.input(0), o.output(0))]))
    }
}

fn matmul(
    lowering: &Lowering,
    problem: MatmulProblem,
    [x, w, y]: [Span; 3],
    bias: Option<Span>,
) -> Result<Call, CudaError> {
    let (engine, workspace) = lowering.gpu.matmuls.facts(&problem)?;
    Ok(Call::Matmul(LibraryCall { problem, engine, x, w, y, bias, workspace: scratch(0, workspace) }))
}

/// A linear layer, or one of its gradients, as cuBLASLt states it.
pub(crate) fn matmul_problem(plan: &Plan, node: &Node) -> Result<MatmulProblem, CudaError> {
    let unsupported = || unsupported(plan, node);
    let shape = |id: Option<&ValueId>| {
        let shape = plan.shape(*id.ok_or_else(unsupported)?);
        Ok((shape.elements() / shape.last().max(1), shape.last()))
    };
    let (rows, columns) = shape(node.inputs.first())?;
    let arithmetic = arithmetic(plan, node, node.inputs.first())?;
    let (matmul, inputs, outputs) = match node.op {
        Op::LinearForward(_) => {
            let bias = node.inputs.len() > 2 && arithmetic.activations() == DType::F32;
            (Matmul::Forward { bias }, columns, shape(node.outputs.first())?.1)
        }
        Op::LinearBackwardData(_) => (Matmul::BackwardData, shape(node.outputs.first())?.1, columns),
        Op::LinearBackwardWeights(_) => (Matmul::BackwardWeights, columns, shape(node.inputs.get(1))?.1),
        _ => return Err(unsupported()),
    };
    Ok(MatmulProblem { matmul, rows, inputs, outputs, arithmetic })
}
