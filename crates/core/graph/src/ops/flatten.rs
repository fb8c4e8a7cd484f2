//! From images to rows of features, in PyTorch's order.

use super::Operation;
use crate::autodiff::Backward;
use crate::{GraphError, Node, Tensor, ValueId};

/// Rows of features in the order of PyTorch's NCHW flatten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flatten;

impl Operation for Flatten {
    const NAME: &'static str = "flatten";
    const SIGNATURE: &'static str = "(x [N,H,W,C]) -> (y [N,C*H*W])";
    const PYTORCH: Option<&'static str> = Some("torch.nn.Flatten");

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        backward.emit_gradient(node.inputs[0], FlattenBackward, vec![dy]);
        Ok(())
    }
}

/// The gradient of [`Flatten`]: the same elements in the order of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlattenBackward;

impl Operation for FlattenBackward {
    const NAME: &'static str = "flatten_backward";
    const SIGNATURE: &'static str = "(dy [N,C*H*W]) -> (dx [N,H,W,C])";
}

impl Tensor {
    /// Flattens in PyTorch's order: channels first.
    ///
    /// # Shapes
    /// `[N,H,W,C]` to `[N,C*H*W]`.
    pub fn flatten(self) -> Tensor {
        let shape = self.shape();
        let Some([n, h, w, c]) = self.image_dims(self.place("flatten"), &shape) else { return self };
        self.record(Flatten, &[], [n, h * w * c].into())
    }
}
