//! Linear layers.

use enmasse_graph::ops::LinearForward;
use enmasse_onnx::{Attribute, Value};

use super::ToOnnx;
use crate::ExportError;
use crate::translation::Translation;

impl ToOnnx for LinearForward {
    fn to_onnx(&self, node: &mut Translation) -> Result<(), ExportError> {
        let x = node.activation(0)?;
        if node.shape(0).len() == 2 {
            // The weights are as in PyTorch, `[outputs, inputs]`.
            let operands: Vec<Value> = [x].into_iter().chain(node.weights_and_bias()?).collect();
            let y = node.onnx.node("Gemm", &operands.iter().collect::<Vec<_>>(), &[("transB", Attribute::Int(1))]);
            return node.give(y);
        }
        let w = node.transposed_weights(1)?;
        let product = node.plain("MatMul", &[&x, &w]);
        let y = if node.operands() > 2 {
            let bias = node.operand(2)?;
            node.plain("Add", &[&product, &bias])
        } else {
            product
        };
        node.give(y)
    }
}
