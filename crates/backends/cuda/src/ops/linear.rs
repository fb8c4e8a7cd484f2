//! Linear layers, and their gradients.

use enmasse_graph::ops::{BiasBackward, LinearBackwardData, LinearBackwardWeights, LinearForward};
use enmasse_graph::{Node, Op, Plan, Precision, ValueId};

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::CudaError;
use crate::cublas_lt::{Matmul, MatmulProblem};
use crate::kernels::bias;
use crate::lower::{scratch, unsupported};
use crate::sequence::{Call, LibraryCall};
use crate::work::Span;

impl OnCuda for LinearForward {
    fn lower(&self, o: &Operands, lowering: &mut Lowering) -> Lowered {
        matmul(o, lowering, [o.input(0), o.input(1), o.output(0)], o.optional(2))
    }
}

impl OnCuda for LinearBackwardData {
    fn lower(&self, o: &Operands, lowering: &mut Lowering) -> Lowered {
        matmul(o, lowering, [o.output(0), o.input(1), o.input(0)], None)
    }
}

impl OnCuda for LinearBackwardWeights {
    fn lower(&self, o: &Operands, lowering: &mut Lowering) -> Lowered {
        matmul(o, lowering, [o.input(0), o.output(0), o.input(1)], None)
    }
}

impl OnCuda for BiasBackward {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed(bias::bias_backward(o.rows(0)?, o.input(0), o.output(0))))
    }
}

fn matmul(o: &Operands, lowering: &Lowering, [x, w, y]: [Span; 3], bias: Option<Span>) -> Lowered {
    let problem = matmul_problem(o.plan, o.node)?;
    let (engine, workspace) = lowering.gpu.matmuls.facts(&problem)?;
    let workspace = scratch(0, workspace);
    Ok(computed([Call::Matmul(LibraryCall { problem, engine, x, w, y, bias, workspace })]))
}

/// A linear layer, or one of its gradients, as cuBLASLt states it.
pub(crate) fn matmul_problem(plan: &Plan, node: &Node) -> Result<MatmulProblem, CudaError> {
    let unsupported = || unsupported(plan, node);
    let shape = |id: Option<&ValueId>| match plan.shape(*id.ok_or_else(unsupported)?)[..] {
        [rows, columns] => Ok((rows, columns)),
        _ => Err(unsupported()),
    };
    let (rows, columns) = shape(node.inputs.first())?;
    let (matmul, inputs, outputs) = match node.op {
        Op::LinearForward(_) => {
            let bias = node.inputs.len() > 2;
            (Matmul::Forward { bias }, columns, shape(node.outputs.first())?.1)
        }
        Op::LinearBackwardData(_) => (Matmul::BackwardData, shape(node.outputs.first())?.1, columns),
        Op::LinearBackwardWeights(_) => (Matmul::BackwardWeights, columns, shape(node.inputs.get(1))?.1),
        _ => return Err(unsupported()),
    };
    Ok(MatmulProblem { matmul, rows, inputs, outputs, tf32: plan.precision == Precision::Tf32 })
}
