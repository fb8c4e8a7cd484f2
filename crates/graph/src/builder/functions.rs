//! What functions of logits and targets are made of: operations over rows of classes, and element by element.

use std::ops::Mul;

use super::Tensor;
use crate::{GraphError, Op};

impl Tensor {
    /// `[batch, classes]` to `[batch]`: the sum over classes (PyTorch's `x.sum(1)`).
    pub fn sum_classes(self) -> Tensor {
        let Some([n, _]) = self.row_dims("sum_classes") else { return self };
        self.record_as(false, Op::SumClasses, &[], [n].into())
    }

    fn row_dims(&self, operation: &'static str) -> Option<[usize; 2]> {
        let shape = self.shape();
        let dims = <[usize; 2]>::try_from(&shape[..]).ok();
        if dims.is_none() {
            let layer = self.state.borrow().layer.clone();
            let reason = "it must be [batch, classes]".into();
            self.set_error(GraphError::Shape { layer, operation, shape, reason });
        }
        dims
    }
}

/// Multiplies two tensors of one shape, element by element.
impl Mul for Tensor {
    type Output = Tensor;
    fn mul(self, other: Tensor) -> Tensor {
        match self.same_shape("multiply", &other) {
            Some(shape) => self.record(Op::Multiply, &[other.id], shape),
            None => self,
        }
    }
}
