//! Operations for functions of logits and targets: over rows of classes, and element by element.

use std::ops::Mul;

use super::Tensor;
use crate::{Function, GraphError, Op};

impl Tensor {
    /// The logarithm of the softmax over classes, `[batch, classes]` (PyTorch's `log_softmax(1)`).
    pub fn log_softmax(self) -> Tensor {
        match self.row_dims("log_softmax") {
            Some(dims) => self.record(Op::LogSoftmax, &[], dims.into()),
            None => self,
        }
    }

    /// `scale * x + shift` of each element (PyTorch's `scale * x + shift`).
    pub fn affine(self, scale: f32, shift: f32) -> Tensor {
        self.map(Function::Affine { scale, shift })
    }

    /// e to the power of each element (PyTorch's `exp`).
    pub fn exp(self) -> Tensor {
        self.map(Function::Exp)
    }

    /// The natural logarithm of each element (PyTorch's `log`).
    pub fn log(self) -> Tensor {
        self.map(Function::Log)
    }

    /// Each element to the power of `exponent` (PyTorch's `pow`).
    pub fn power(self, exponent: f32) -> Tensor {
        self.map(Function::Power(exponent))
    }

    /// The larger of each element and `minimum` (PyTorch's `clamp(min=minimum)`).
    pub fn clamp_min(self, minimum: f32) -> Tensor {
        self.map(Function::ClampMin(minimum))
    }

    fn map(self, function: Function) -> Tensor {
        let shape = self.shape();
        let op = Op::Map(function);
        if !function.is_finite() {
            let reason = format!("takes only finite numbers, not {op}");
            return self.fail(GraphError::Attribute { place: self.place(op.name()), reason });
        }
        self.record(op, &[], shape)
    }

    /// Each class of `[batch, classes]` times its factor (PyTorch's `x * factors`).
    pub fn scale_classes(self, factors: &[f32]) -> Tensor {
        let Some([n, classes]) = self.row_dims("scale_classes") else { return self };
        let wrong = match factors.iter().find(|factor| !factor.is_finite()) {
            _ if factors.len() != classes => {
                Some(format!("a factor for each of {classes} classes, got {}", factors.len()))
            }
            Some(factor) => Some(format!("finite factors, got {factor}")),
            None => None,
        };
        if let Some(wrong) = wrong {
            let (place, reason) = (self.place("scale_classes"), format!("takes {wrong}"));
            return self.fail(GraphError::Attribute { place, reason });
        }
        self.record(Op::ScaleClasses { factors: factors.into() }, &[], [n, classes].into())
    }

    /// `[batch, classes]` to `[batch]`: the sum over classes (PyTorch's `x.sum(1)`).
    pub fn sum_classes(self) -> Tensor {
        let Some([n, _]) = self.row_dims("sum_classes") else { return self };
        self.record_as(false, Op::SumClasses, &[], [n].into())
    }

    fn row_dims(&self, operation: &'static str) -> Option<[usize; 2]> {
        let shape = self.shape();
        let dims = <[usize; 2]>::try_from(&shape[..]).ok();
        if dims.is_none() {
            let (place, reason) = (self.place(operation), "it needs [batch,classes]".into());
            self.set_error(GraphError::Shape { place, shape, reason });
        }
        dims
    }
}

/// Multiplies two tensors of the same shape, element by element.
impl Mul for Tensor {
    type Output = Tensor;
    fn mul(self, other: Tensor) -> Tensor {
        match self.same_shape("multiply", &other) {
            Some(shape) => self.record(Op::Multiply, &[other.id], shape),
            None => self,
        }
    }
}
