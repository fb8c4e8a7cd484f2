//! Functions of one number, applied to each element.

use super::Operation;
use crate::autodiff::Backward;
use crate::{GraphError, Node, Op, Tensor, ValueId};

/// A function of one number; `y` may lie over `x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Function {
    /// `scale * x + shift`.
    Affine {
        /// Factor of x.
        scale: f32,
        /// Added to the product.
        shift: f32,
    },
    /// e to the power of x.
    Exp,
    /// The natural logarithm.
    Log,
    /// x to the power of an exponent. The derivative of the power 0 is 0 everywhere, as in PyTorch.
    Power(f32),
    /// The larger of x and a minimum; NaN stays NaN. The derivative at the minimum is 1, as in PyTorch.
    ClampMin(f32),
}

impl Function {
    /// Whether its attributes are finite.
    fn is_finite(self) -> bool {
        match self {
            Function::Affine { scale, shift } => scale.is_finite() && shift.is_finite(),
            Function::Exp | Function::Log => true,
            Function::Power(value) | Function::ClampMin(value) => value.is_finite(),
        }
    }
}

impl Operation for Function {
    const NAME: &'static str = "function";
    const SIGNATURE: &'static str = "(x) -> (y)";
    const PYTORCH: Option<&'static str> = Some("torch.exp, torch.log, torch.pow, torch.clamp");

    fn name(&self) -> &'static str {
        match self {
            Function::Affine { .. } => "affine",
            Function::Exp => "exp",
            Function::Log => "log",
            Function::Power(_) => "power",
            Function::ClampMin(_) => "clamp_min",
        }
    }

    fn attributes(&self) -> String {
        match self {
            Function::Affine { scale, shift } => format!("scale {scale} shift {shift}"),
            Function::Exp | Function::Log => String::new(),
            Function::Power(value) | Function::ClampMin(value) => value.to_string(),
        }
    }

    fn in_place(&self) -> Option<(usize, usize)> {
        Some((0, 0))
    }

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        let x = node.inputs[0];
        backward.emit_gradient(x, FunctionBackward(*self), vec![dy, x]);
        Ok(())
    }
}

/// `dy` times the function's derivative at each element; `dx` may lie over `dy`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FunctionBackward(pub Function);

impl Operation for FunctionBackward {
    const NAME: &'static str = "function_backward";
    const SIGNATURE: &'static str = "(dy, x) -> (dx)";

    fn name(&self) -> &'static str {
        match self.0 {
            Function::Affine { .. } => "affine_backward",
            Function::Exp => "exp_backward",
            Function::Log => "log_backward",
            Function::Power(_) => "power_backward",
            Function::ClampMin(_) => "clamp_min_backward",
        }
    }

    fn attributes(&self) -> String {
        self.0.attributes()
    }

    fn in_place(&self) -> Option<(usize, usize)> {
        Some((0, 0))
    }
}

/// Each of these takes any shape, and gives the same.
impl Tensor {
    /// `scale * x + shift` of each element (PyTorch's `scale * x + shift`).
    pub fn affine(self, scale: f32, shift: f32) -> Tensor {
        self.function(Function::Affine { scale, shift })
    }

    /// e to the power of each element (PyTorch's `exp`).
    pub fn exp(self) -> Tensor {
        self.function(Function::Exp)
    }

    /// The natural logarithm of each element (PyTorch's `log`).
    pub fn log(self) -> Tensor {
        self.function(Function::Log)
    }

    /// Each element to the power of `exponent` (PyTorch's `pow`).
    pub fn power(self, exponent: f32) -> Tensor {
        self.function(Function::Power(exponent))
    }

    /// The larger of each element and `minimum` (PyTorch's `clamp(min=minimum)`).
    pub fn clamp_min(self, minimum: f32) -> Tensor {
        self.function(Function::ClampMin(minimum))
    }

    fn function(self, function: Function) -> Tensor {
        if !function.is_finite() {
            let reason = format!("takes only finite numbers, not {}", Op::from(function));
            return self.fail(GraphError::Attribute { place: self.place(function.name()), reason });
        }
        self.elementwise(function)
    }
}
