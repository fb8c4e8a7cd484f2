//! Batch norm and layer norm.

use enmasse_graph::ops::{BatchNormNormalize, LayerNorm, NormStatistics};
use enmasse_onnx::Attribute;

use super::ToOnnx;
use crate::ExportError;
use crate::translation::Translation;

impl ToOnnx for BatchNormNormalize {
    fn to_onnx(&self, node: &mut Translation) -> Result<(), ExportError> {
        let BatchNormNormalize { epsilon, statistics, activation } = *self;
        // A fused one has a residual or an activation, which no builder records.
        if statistics != NormStatistics::Running || activation.is_some() || node.operands() > 5 {
            return node.refuse();
        }
        let mut x = node.operand(0)?;
        let is_tokens = node.shape(0).len() == 3;
        if is_tokens {
            x = node.transpose(&x, &[0, 2, 1]);
        }
        let [mean, variance] = [node.operand(1)?, node.operand(2)?];
        let [weight, bias] = [node.operand(3)?, node.operand(4)?];
        let attributes = [("epsilon", Attribute::Float(epsilon))];
        let mut y = node.onnx.node("BatchNormalization", &[&x, &weight, &bias, &mean, &variance], &attributes);
        if is_tokens {
            y = node.transpose(&y, &[0, 2, 1]);
        }
        node.give(y)
    }
}

impl ToOnnx for LayerNorm {
    fn to_onnx(&self, node: &mut Translation) -> Result<(), ExportError> {
        let [x, weight, bias] = [node.operand(0)?, node.operand(1)?, node.operand(2)?];
        let attributes = [("axis", Attribute::Int(-1)), ("epsilon", Attribute::Float(self.epsilon))];
        let y =
            node.channels_last(&x, |node, x| node.onnx.node("LayerNormalization", &[x, &weight, &bias], &attributes));
        node.give(y)
    }
}
