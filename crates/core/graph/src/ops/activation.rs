//! ReLU and ReLU6.

use super::Operation;
use crate::autodiff::Backward;
use crate::{GraphError, Node, Tensor, ValueId};

/// An activation whose gradient follows from its result `y`; `y` may lie over `x`.
///
/// ReLU passes the gradient where `0 < y`, ReLU6 where `0 < y < 6` (as PyTorch's `ReLU` and `ReLU6` do; NaN stays NaN).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `max(x, 0)`.
    Relu,
    /// `min(max(x, 0), 6)`.
    Relu6,
}

impl Operation for Activation {
    const NAME: &'static str = "activation";
    const SIGNATURE: &'static str = "(x) -> (y)";
    const PYTORCH: Option<&'static str> = Some("torch.nn.ReLU, torch.nn.ReLU6");

    fn name(&self) -> &'static str {
        match self {
            Activation::Relu => "relu",
            Activation::Relu6 => "relu6",
        }
    }

    fn in_place(&self) -> Option<(usize, usize)> {
        Some((0, 0))
    }

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        backward.emit_gradient(node.inputs[0], ActivationBackward(*self), vec![dy, node.outputs[0]]);
        Ok(())
    }
}

/// `dy` where the activation passed `y`, else 0; `dx` may lie over `dy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ActivationBackward(pub Activation);

impl Operation for ActivationBackward {
    const NAME: &'static str = "activation_backward";
    const SIGNATURE: &'static str = "(dy, y) -> (dx)";

    fn name(&self) -> &'static str {
        match self.0 {
            Activation::Relu => "relu_backward",
            Activation::Relu6 => "relu6_backward",
        }
    }

    fn in_place(&self) -> Option<(usize, usize)> {
        Some((0, 0))
    }
}

impl Tensor {
    /// `max(x, 0)`.
    ///
    /// # Shapes
    /// Any, and the same.
    pub fn relu(self) -> Tensor {
        self.elementwise(Activation::Relu)
    }

    /// `min(max(x, 0), 6)`.
    ///
    /// # Shapes
    /// Any, and the same.
    pub fn relu6(self) -> Tensor {
        self.elementwise(Activation::Relu6)
    }
}
