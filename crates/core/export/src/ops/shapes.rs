//! Other shapes of the same elements, and tokens beside tokens.

use enmasse_graph::ops::{AddTokens, Flatten, PrependTokens, Reshape, SelectTokens};
use enmasse_onnx::Attribute;

use super::ToOnnx;
use crate::ExportError;
use crate::translation::Translation;

impl ToOnnx for Flatten {
    fn to_onnx(&self, node: &mut Translation) -> Result<(), ExportError> {
        let x = node.operand(0)?;
        let y = node.onnx.node("Flatten", &[&x], &[("axis", Attribute::Int(1))]);
        node.give(y)
    }
}

/// The elements keep our order, which images have in ONNX only once they are transposed.
impl ToOnnx for Reshape {
    fn to_onnx(&self, node: &mut Translation) -> Result<(), ExportError> {
        let mut x = node.operand(0)?;
        if node.shape(0).len() == 4 {
            x = node.transpose(&x, &[0, 2, 3, 1]);
        }
        let dims = node.result_shape().clone();
        let mut y = node.reshape(&x, &dims[1..]);
        if dims.len() == 4 {
            y = node.transpose(&y, &[0, 3, 1, 2]);
        }
        node.give(y)
    }
}

impl ToOnnx for AddTokens {
    fn to_onnx(&self, node: &mut Translation) -> Result<(), ExportError> {
        let [x, tokens] = [node.operand(0)?, node.operand(1)?];
        let y = node.plain("Add", &[&x, &tokens]);
        node.give(y)
    }
}

impl ToOnnx for PrependTokens {
    fn to_onnx(&self, node: &mut Translation) -> Result<(), ExportError> {
        let [x, tokens] = [node.operand(0)?, node.operand(1)?];
        let first = [("start", Attribute::Int(0)), ("end", Attribute::Int(1))];
        let batch = node.onnx.node("Shape", &[&x], &first);
        let ones = node.integers(&[1, 1]);
        let axis = |axis| [("axis", Attribute::Int(axis))];
        let repeats = node.onnx.node("Concat", &[&batch, &ones], &axis(0));
        let repeated = node.plain("Expand", &[&tokens, &repeats]);
        let y = node.onnx.node("Concat", &[&repeated, &x], &axis(1));
        node.give(y)
    }
}

impl ToOnnx for SelectTokens {
    fn to_onnx(&self, node: &mut Translation) -> Result<(), ExportError> {
        let x = node.operand(0)?;
        let end = self.first + node.result_shape()[1];
        let [start, end, axis] = [self.first as i64, end as i64, 1].map(|value| node.integers(&[value]));
        let y = node.plain("Slice", &[&x, &start, &end, &axis]);
        node.give(y)
    }
}
