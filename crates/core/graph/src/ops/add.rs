//! The sum of two tensors: a residual connection.

use super::Operation;
use crate::autodiff::Backward;
use crate::{GraphError, Node, Tensor, ValueId};

/// `a + b`, element by element; `c` may lie over `a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Add;

impl Operation for Add {
    const NAME: &'static str = "add";
    const SIGNATURE: &'static str = "(a, b) -> (c)";
    const PYTORCH: Option<&'static str> = Some("torch.add");

    fn in_place(&self) -> Option<(usize, usize)> {
        Some((0, 0))
    }

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        backward.add_gradient(node.inputs[0], dy);
        backward.add_gradient(node.inputs[1], dy);
        Ok(())
    }
}

/// Adds two tensors of the same shape: a residual connection.
impl std::ops::Add for Tensor {
    type Output = Tensor;
    fn add(self, other: Tensor) -> Tensor {
        match self.same_shape("add", &other) {
            Some(shape) => self.record(Add, &[other.id], shape),
            None => self,
        }
    }
}
