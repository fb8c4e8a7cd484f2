//! The logarithm of the softmax over classes.

use super::Operation;
use crate::autodiff::Backward;
use crate::{GraphError, Node, Tensor, ValueId};

/// `x - log(sum of exp(x) over classes)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogSoftmax;

impl Operation for LogSoftmax {
    const NAME: &'static str = "log_softmax";
    const SIGNATURE: &'static str = "(x [N,K]) -> (y [N,K])";
    const PYTORCH: Option<&'static str> = Some("torch.nn.LogSoftmax");

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        backward.emit_gradient(node.inputs[0], LogSoftmaxBackward, vec![dy, node.outputs[0]]);
        Ok(())
    }
}

/// `dy - exp(y) * sum of dy over classes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogSoftmaxBackward;

impl Operation for LogSoftmaxBackward {
    const NAME: &'static str = "log_softmax_backward";
    const SIGNATURE: &'static str = "(dy [N,K], y [N,K]) -> (dx [N,K])";
}

impl Tensor {
    /// `x - log(sum of exp(x) over classes)` (PyTorch's `log_softmax(1)`).
    ///
    /// # Shapes
    /// `[N,K]`, and the same.
    pub fn log_softmax(self) -> Tensor {
        match self.row_dims("log_softmax") {
            Some(dims) => self.record(LogSoftmax, &[], dims.into()),
            None => self,
        }
    }
}
