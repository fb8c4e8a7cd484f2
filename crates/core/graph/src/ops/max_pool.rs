//! Max pooling.

use enmasse_tensor::DType;

use super::Operation;
use crate::autodiff::Backward;
use crate::{GraphError, Node, Pool, Tensor, ValueId, Window};

/// The largest element of each window, and its index in the window, `row * kernel width + column`.
///
/// The first of equal elements wins, and NaN wins over numbers, as in PyTorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MaxPool(pub Window);

impl Operation for MaxPool {
    const NAME: &'static str = "max_pool";
    const SIGNATURE: &'static str = "(x) -> (y, position u8)";
    const PYTORCH: Option<&'static str> = Some("torch.nn.MaxPool2d");

    fn attributes(&self) -> String {
        self.0.to_string()
    }

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        backward.emit_gradient(node.inputs[0], MaxPoolBackward(self.0), vec![dy, node.outputs[1]]);
        Ok(())
    }
}

/// The gradient of [`MaxPool`]: each element of `dy` goes to the element that won, and those that meet are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MaxPoolBackward(pub Window);

impl Operation for MaxPoolBackward {
    const NAME: &'static str = "max_pool_backward";
    const SIGNATURE: &'static str = "(dy, position u8) -> (dx)";

    fn attributes(&self) -> String {
        self.0.to_string()
    }
}

impl Tensor {
    /// Max pooling.
    ///
    /// # Shapes
    /// `[N,H,W,C]` to `[N,OH,OW,C]` with `OH = floor((H + top + bottom - kernel) / stride) + 1`, and `OW` alike.
    pub fn max_pool(self, pool: Pool) -> Tensor {
        if pool.window.kernel[0] * pool.window.kernel[1] > 256 {
            let reason = format!("has a window of {}; at most 256 elements fit", pool.window);
            return self.fail(GraphError::Attribute { place: self.place("max_pool"), reason });
        }
        let Some((window, shape)) = self.pooled("max_pool", pool) else { return self };
        let y = self.record(MaxPool(window), &[], shape.clone());
        y.add_result("position", shape, DType::U8);
        y
    }
}
