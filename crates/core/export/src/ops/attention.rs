//! Attention, as the matmuls and the softmax that it consists of.

use enmasse_graph::ops::Attention;
use enmasse_onnx::{Attribute, Tensor};

use super::ToOnnx;
use crate::ExportError;
use crate::translation::Translation;

/// The second result, which only the gradient reads, has no counterpart.
impl ToOnnx for Attention {
    fn to_onnx(&self, node: &mut Translation) -> Result<(), ExportError> {
        let qkv = node.operand(0)?;
        let shape = node.result_shape().clone();
        let (tokens, channels) = (shape[1], shape[2]);
        let size = channels / self.heads;
        let parts = node.reshape(&qkv, &[tokens, 3, self.heads, size]);
        let parts = node.transpose(&parts, &[2, 0, 3, 1, 4]);
        let [q, k, v] = [0, 1, 2].map(|part| {
            let part = node.constant("part", Tensor::integer(part));
            node.onnx.node("Gather", &[&parts, &part], &[("axis", Attribute::Int(0))])
        });
        let q = node.with_number("Mul", &q, 1.0 / (size as f32).sqrt());
        let k = node.transpose(&k, &[0, 1, 3, 2]);
        let scores = node.plain("MatMul", &[&q, &k]);
        let shares = node.onnx.node("Softmax", &[&scores], &[("axis", Attribute::Int(-1))]);
        let heads = node.plain("MatMul", &[&shares, &v]);
        let heads = node.transpose(&heads, &[0, 2, 1, 3]);
        let y = node.reshape(&heads, &[tokens, channels]);
        node.give(y)
    }
}
