//! Linear layers, and their gradients. Where one of an instruction's activations has 16 bits, it multiplies in 16 bits, and sums in f32.

use enmasse_graph::ops::{BiasBackward, LinearBackwardData, LinearBackwardWeights, LinearForward};
use enmasse_graph::{Node, Op, Plan, ValueId};
use enmasse_tensor::DType;

use super::conv2d::{ALIGNMENT, multiplied};
use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::CudaError;
use crate::cublas_lt::{Matmul, MatmulProblem};
use crate::kernels::{bias, elementwise};
use crate::lower::{arithmetic, scratch, unsupported};
use crate::sequence::{Call, LibraryCall};
use crate::work::Span;

impl OnCuda for LinearForward {
    fn lower(&self, o: &Operands, lowering: &mut Lowering) -> Lowered {
        let problem = matmul_problem(o.plan, o.node)?;
        let mut calls = Calls::default();
        let x = calls.factor(o, 0);
        let w = multiplied(o, o.input(1));
        let bias = o.optional(2).map(|bias| if problem.product == DType::F32 { bias } else { multiplied(o, bias) });
        calls.matmul(lowering, problem, [x, w, o.output(0)], bias)
    }
}

impl OnCuda for LinearBackwardData {
    fn lower(&self, o: &Operands, lowering: &mut Lowering) -> Lowered {
        let mut calls = Calls::default();
        let dy = calls.factor(o, 0);
        let w = multiplied(o, o.input(1));
        calls.matmul(lowering, matmul_problem(o.plan, o.node)?, [o.output(0), w, dy], None)
    }
}

impl OnCuda for LinearBackwardWeights {
    fn lower(&self, o: &Operands, lowering: &mut Lowering) -> Lowered {
        let mut calls = Calls::default();
        let (x, dy) = (calls.factor(o, 0), calls.factor(o, 1));
        calls.matmul(lowering, matmul_problem(o.plan, o.node)?, [x, o.output(0), dy], None)
    }
}

impl OnCuda for BiasBackward {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Ok(computed([bias::bias_backward(o.rows(0)?, o.input(0), o.output(0))]))
    }
}

/// A matmul in the making, after what rounds its factors.
#[derive(Default)]
struct Calls {
    roundings: Vec<Call>,
    /// Bytes of scratch that hold rounded factors.
    used: usize,
}

impl Calls {
    /// An operand that is an activation, in the type in which the instruction multiplies: logits' gradients are f32, and rounded first.
    fn factor(&mut self, o: &Operands, index: usize) -> Span {
        let span = o.input(index);
        let narrow = o.activations();
        if o.plan.value(o.node.inputs[index]).dtype == narrow {
            return span;
        }
        let rounded = scratch(self.used, span.bytes / DType::F32.size() * narrow.size());
        self.used = (self.used + rounded.bytes).next_multiple_of(ALIGNMENT);
        self.roundings.push(Call::Kernel(elementwise::cast(DType::F32, span, narrow, rounded)));
        rounded
    }

    fn matmul(self, lowering: &Lowering, problem: MatmulProblem, [x, w, y]: [Span; 3], bias: Option<Span>) -> Lowered {
        let (engine, workspace) = lowering.gpu.matmuls.facts(&problem)?;
        let workspace = scratch(self.used, workspace);
        let matmul = Call::Matmul(LibraryCall { problem, engine, x, w, y, bias, workspace });
        Ok(computed(self.roundings.into_iter().chain([matmul])))
    }
}

/// A linear layer, or one of its gradients, as cuBLASLt states it.
pub(crate) fn matmul_problem(plan: &Plan, node: &Node) -> Result<MatmulProblem, CudaError> {
    let unsupported = || unsupported(plan, node);
    let shape = |id: Option<&ValueId>| {
        let shape = plan.shape(*id.ok_or_else(unsupported)?);
        Ok((shape.elements() / shape.last().max(1), shape.last()))
    };
    let (rows, columns) = shape(node.inputs.first())?;
    // Logits and their gradients are f32 beside features of 16 bits, which say how they are multiplied.
    let is_narrow = |id: &&ValueId| matches!(plan.value(**id).dtype, DType::Bf16 | DType::F16);
    let operands = || node.inputs.iter().chain(&node.outputs);
    let arithmetic = arithmetic(plan, node, operands().find(is_narrow).or(node.inputs.first()))?;
    let product = plan.value(*node.outputs.first().ok_or_else(unsupported)?).dtype;
    let (matmul, inputs, outputs) = match node.op {
        Op::LinearForward(_) => {
            (Matmul::Forward { bias: node.inputs.len() > 2 }, columns, shape(node.outputs.first())?.1)
        }
        Op::LinearBackwardData(_) => (Matmul::BackwardData, shape(node.outputs.first())?.1, columns),
        Op::LinearBackwardWeights(_) => (Matmul::BackwardWeights, columns, shape(node.inputs.get(1))?.1),
        _ => return Err(unsupported()),
    };
    Ok(MatmulProblem { matmul, rows, inputs, outputs, arithmetic, product })
}
