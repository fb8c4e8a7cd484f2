//! The product of two tensors, element by element.

use super::Operation;
use crate::autodiff::Backward;
use crate::{GraphError, Node, Tensor, ValueId};

/// `a * b`, element by element; `c` may lie over `a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Multiply;

impl Operation for Multiply {
    const NAME: &'static str = "multiply";
    const SIGNATURE: &'static str = "(a, b) -> (c)";
    const PYTORCH: Option<&'static str> = Some("torch.mul");

    fn in_place(&self) -> Option<(usize, usize)> {
        Some((0, 0))
    }

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        let [a, b] = [node.inputs[0], node.inputs[1]];
        backward.emit_gradient(a, Multiply, vec![dy, b]);
        backward.emit_gradient(b, Multiply, vec![dy, a]);
        Ok(())
    }
}

/// Multiplies two tensors of the same shape, element by element.
impl std::ops::Mul for Tensor {
    type Output = Tensor;
    fn mul(self, other: Tensor) -> Tensor {
        match self.same_shape("multiply", &other) {
            Some(shape) => self.record(Multiply, &[other.id], shape),
            None => self,
        }
    }
}
