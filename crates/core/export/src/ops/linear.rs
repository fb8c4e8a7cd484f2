//! Linear layers.

use enmasse_graph::ops::LinearForward;
use enmasse_onnx::{Attribute, Value};

use super::ToOnnx;
use crate::ExportError;
use crate::translation::Translation;

impl ToOnnx for LinearForward {
    fn to_onnx(&self, node: &mut Translation) -> Result<(), ExportError> {
        let x = node.operand(0)?;
        let is_matrix = node.shape(0).len() == 2;
        let w = if is_matrix { node.operand(1)? } else { node.transposed_weights(1)? };
        let bias = if node.operands() > 2 { Some(node.operand(2)?) } else { None };
        let y = if is_matrix {
            // The weights are as in PyTorch, `[outputs, inputs]`.
            let operands: Vec<&Value> = [&x, &w].into_iter().chain(&bias).collect();
            node.onnx.node("Gemm", &operands, &[("transB", Attribute::Int(1))])
        } else {
            let product = node.plain("MatMul", &[&x, &w]);
            match bias {
                Some(bias) => node.plain("Add", &[&product, &bias]),
                None => product,
            }
        };
        node.give(y)
    }
}
