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
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `x * P(X <= x)` for a standard normal X: PyTorch's exact GELU, by the error function.
    Gelu,
}

impl Function {
    /// Its numbers, of which an affine function has two.
    fn numbers(self) -> Vec<f32> {
        match self {
            Function::Affine { scale, shift } => vec![scale, shift],
            Function::Power(value) | Function::ClampMin(value) => vec![value],
            Function::Exp | Function::Log | Function::Sigmoid | Function::Gelu => Vec::new(),
        }
    }
}

impl Operation for Function {
    const NAME: &'static str = "function";
    const SIGNATURE: &'static str = "(x) -> (y)";
    const PYTORCH: Option<&'static str> =
        Some("torch.exp, torch.log, torch.pow, torch.clamp, torch.nn.Sigmoid, torch.nn.GELU");

    fn name(&self) -> &'static str {
        match self {
            Function::Affine { .. } => "affine",
            Function::Exp => "exp",
            Function::Log => "log",
            Function::Power(_) => "power",
            Function::ClampMin(_) => "clamp_min",
            Function::Sigmoid => "sigmoid",
            Function::Gelu => "gelu",
        }
    }

    fn attributes(&self) -> String {
        match self.numbers()[..] {
            [scale, shift] => format!("scale {scale} shift {shift}"),
            [value] => value.to_string(),
            _ => String::new(),
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
            Function::Sigmoid => "sigmoid_backward",
            Function::Gelu => "gelu_backward",
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

    /// `1 / (1 + exp(-x))` of each element (PyTorch's `Sigmoid`).
    pub fn sigmoid(self) -> Tensor {
        self.function(Function::Sigmoid)
    }

    /// `x * P(X <= x)` of each element, for a standard normal X (PyTorch's `GELU`, which is exact unless told otherwise).
    pub fn gelu(self) -> Tensor {
        self.function(Function::Gelu)
    }

    fn function(self, function: Function) -> Tensor {
        if !function.numbers().iter().all(|number| number.is_finite()) {
            let reason = format!("takes only finite numbers, not {}", Op::from(function));
            return self.fail(GraphError::Attribute { place: self.place(function.name()), reason });
        }
        self.elementwise(function)
    }
}
