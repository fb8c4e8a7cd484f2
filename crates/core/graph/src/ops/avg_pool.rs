//! Average pooling over a window.

use super::Operation;
use crate::autodiff::Backward;
use crate::{GraphError, Node, Pool, Tensor, ValueId, Window};

/// The mean over a window without dilation. The divisor includes padding (PyTorch's `count_include_pad=True`), so that a
/// pooling with padding equals PyTorch's `F.pad` and a pooling without. TensorFlow's divisor leaves it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AvgPool(pub Window);

impl Operation for AvgPool {
    const NAME: &'static str = "avg_pool";
    const SIGNATURE: &'static str = "(x) -> (y)";
    const PYTORCH: Option<&'static str> = Some("torch.nn.AvgPool2d");

    fn attributes(&self) -> String {
        self.0.to_string()
    }

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        backward.emit_gradient(node.inputs[0], AvgPoolBackward(self.0), vec![dy]);
        Ok(())
    }
}

/// The gradient of [`AvgPool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AvgPoolBackward(pub Window);

impl Operation for AvgPoolBackward {
    const NAME: &'static str = "avg_pool_backward";
    const SIGNATURE: &'static str = "(dy) -> (dx)";

    fn attributes(&self) -> String {
        self.0.to_string()
    }
}

impl Tensor {
    /// Average pooling; the divisor includes padding.
    ///
    /// # Shapes
    /// `[N,H,W,C]` to `[N,OH,OW,C]` with `OH = floor((H + top + bottom - kernel) / stride) + 1`, and `OW` alike.
    pub fn avg_pool(self, pool: Pool) -> Tensor {
        match self.pooled("avg_pool", pool) {
            Some((window, shape)) => self.record(AvgPool(window), &[], shape),
            None => self,
        }
    }
}
