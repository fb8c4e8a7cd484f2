//! The sum over classes.

use super::Operation;
use crate::autodiff::Backward;
use crate::{GraphError, Node, Tensor, ValueId};

/// The sum over classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SumClasses;

impl Operation for SumClasses {
    const NAME: &'static str = "sum_classes";
    const SIGNATURE: &'static str = "(x [N,K]) -> (y [N])";
    const PYTORCH: Option<&'static str> = Some("torch.sum(x, 1)");

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        backward.emit_gradient(node.inputs[0], SumClassesBackward, vec![dy]);
        Ok(())
    }
}

/// `dy` at every class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SumClassesBackward;

impl Operation for SumClassesBackward {
    const NAME: &'static str = "sum_classes_backward";
    const SIGNATURE: &'static str = "(dy [N]) -> (dx [N,K])";
}

impl Tensor {
    /// The sum over classes (PyTorch's `x.sum(1)`).
    ///
    /// # Shapes
    /// `[N,K]` to `[N]`.
    pub fn sum_classes(self) -> Tensor {
        let Some([n, _]) = self.row_dims("sum_classes") else { return self };
        self.record(SumClasses, &[], [n].into())
    }

    /// The mean over classes (PyTorch's `x.mean(1)`).
    ///
    /// # Shapes
    /// `[N,K]` to `[N]`.
    pub fn mean_classes(self) -> Tensor {
        let classes = self.shape().last();
        self.sum_classes().affine(1.0 / classes as f32, 0.0)
    }
}
