//! Activations, which a batch norm can apply too.

use super::Operation;
use crate::autodiff::Backward;
use crate::{GraphError, Node, Tensor, ValueId};

/// An activation; `y` may lie over `x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `max(x, 0)`.
    Relu,
    /// `min(max(x, 0), 6)`.
    Relu6,
    /// `x * sigmoid(x)`.
    Silu,
    /// `x * min(max(x + 3, 0), 6) / 6`.
    HardSwish,
}

impl Activation {
    /// Whether it is ReLU or ReLU6, whose gradient follows from the result `y`: ReLU passes it where `0 < y`, ReLU6 where `0 < y < 6` (as
    /// PyTorch's `ReLU` and `ReLU6` do; NaN stays NaN). The gradients of others follow from `x` alone. Hard swish's derivative is 0 up to -3
    /// and 1 from 3, as in PyTorch.
    pub fn is_relu(self) -> bool {
        match self {
            Activation::Relu | Activation::Relu6 => true,
            Activation::Silu | Activation::HardSwish => false,
        }
    }
}

impl Operation for Activation {
    const NAME: &'static str = "activation";
    const SIGNATURE: &'static str = "(x) -> (y)";
    const PYTORCH: Option<&'static str> = Some("torch.nn.ReLU, torch.nn.ReLU6, torch.nn.SiLU, torch.nn.Hardswish");

    fn name(&self) -> &'static str {
        match self {
            Activation::Relu => "relu",
            Activation::Relu6 => "relu6",
            Activation::Silu => "silu",
            Activation::HardSwish => "hard_swish",
        }
    }

    fn in_place(&self) -> Option<(usize, usize)> {
        Some((0, 0))
    }

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        let known = if self.is_relu() { node.outputs[0] } else { node.inputs[0] };
        backward.emit_gradient(node.inputs[0], ActivationBackward(*self), vec![dy, known]);
        Ok(())
    }
}

/// `dy` times the activation's derivative, by its result if it is a ReLU, else by `x`; `dx` may lie over `dy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ActivationBackward(pub Activation);

impl Operation for ActivationBackward {
    const NAME: &'static str = "activation_backward";
    const SIGNATURE: &'static str = "(dy, x or y) -> (dx)";

    fn name(&self) -> &'static str {
        match self.0 {
            Activation::Relu => "relu_backward",
            Activation::Relu6 => "relu6_backward",
            Activation::Silu => "silu_backward",
            Activation::HardSwish => "hard_swish_backward",
        }
    }

    fn in_place(&self) -> Option<(usize, usize)> {
        Some((0, 0))
    }
}

/// Each of these takes any shape, and gives the same.
impl Tensor {
    /// `max(x, 0)` (PyTorch's `ReLU`).
    pub fn relu(self) -> Tensor {
        self.elementwise(Activation::Relu)
    }

    /// `min(max(x, 0), 6)` (PyTorch's `ReLU6`).
    pub fn relu6(self) -> Tensor {
        self.elementwise(Activation::Relu6)
    }

    /// `x * sigmoid(x)` of each element (PyTorch's `SiLU`).
    pub fn silu(self) -> Tensor {
        self.elementwise(Activation::Silu)
    }

    /// `x * min(max(x + 3, 0), 6) / 6` of each element (PyTorch's `Hardswish`).
    pub fn hard_swish(self) -> Tensor {
        self.elementwise(Activation::HardSwish)
    }
}
