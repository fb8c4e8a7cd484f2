//! Operations on each element.

use std::f32::consts::FRAC_1_SQRT_2;

use enmasse_graph::ops::{Activation, Add, Function, LogSoftmax, Multiply, Pointwise, ScaleClasses, SumClasses};
use enmasse_graph::{Binary, Term, Unary};
use enmasse_onnx::{Attribute, Tensor, Value};

use super::ToOnnx;
use crate::ExportError;
use crate::translation::Translation;

impl ToOnnx for Activation {
    fn to_onnx(&self, node: &mut Translation) -> Result<(), ExportError> {
        let x = node.operand(0)?;
        let y = match self {
            Activation::Relu => node.plain("Relu", &[&x]),
            Activation::Relu6 => {
                let [low, high] = [0.0, 6.0].map(|limit| node.scalar(limit));
                node.plain("Clip", &[&x, &low, &high])
            }
            Activation::Silu => {
                let gate = node.plain("Sigmoid", &[&x]);
                node.plain("Mul", &[&x, &gate])
            }
            Activation::HardSwish => node.plain("HardSwish", &[&x]),
        };
        node.give(y)
    }
}

impl ToOnnx for Function {
    fn to_onnx(&self, node: &mut Translation) -> Result<(), ExportError> {
        let x = node.operand(0)?;
        let y = match *self {
            Function::Affine { scale, shift } => {
                let scaled = node.with_number("Mul", &x, scale);
                node.with_number("Add", &scaled, shift)
            }
            Function::Exp => node.plain("Exp", &[&x]),
            Function::Log => node.plain("Log", &[&x]),
            Function::Power(exponent) => node.with_number("Pow", &x, exponent),
            Function::ClampMin(minimum) => node.with_number("Max", &x, minimum),
            Function::Sigmoid => node.plain("Sigmoid", &[&x]),
            Function::Gelu => {
                // The operator `Gelu` is of a later version.
                let scaled = node.with_number("Mul", &x, FRAC_1_SQRT_2);
                let error = node.plain("Erf", &[&scaled]);
                let doubled = node.with_number("Add", &error, 1.0);
                let product = node.plain("Mul", &[&x, &doubled]);
                node.with_number("Mul", &product, 0.5)
            }
        };
        node.give(y)
    }
}

impl ToOnnx for Pointwise {
    fn to_onnx(&self, node: &mut Translation) -> Result<(), ExportError> {
        let mut steps: Vec<Value> = Vec::new();
        for step in self.formula().steps() {
            let step = match *step {
                Term::Operand(operand) => node.operand(operand)?,
                Term::Constant(value) => node.scalar(value),
                Term::Unary(function, x) => node.plain(unary(function), &[&steps[x]]),
                Term::Binary(function, a, b) => node.plain(binary(function), &[&steps[a], &steps[b]]),
                Term::Power(x, exponent) => node.with_number("Pow", &steps[x], exponent),
                Term::Where([a, b, x, y]) => {
                    let is_above = node.plain("Greater", &[&steps[a], &steps[b]]);
                    node.plain("Where", &[&is_above, &steps[x], &steps[y]])
                }
            };
            steps.push(step);
        }
        for (result, &step) in self.formula().results().iter().enumerate() {
            node.give_result(result, steps[step].clone())?;
        }
        Ok(())
    }
}

fn unary(function: Unary) -> &'static str {
    match function {
        Unary::Negate => "Neg",
        Unary::Abs => "Abs",
        Unary::Exp => "Exp",
        Unary::Log => "Log",
        Unary::Tanh => "Tanh",
        Unary::Erf => "Erf",
        Unary::Sigmoid => "Sigmoid",
        Unary::Sqrt => "Sqrt",
    }
}

fn binary(function: Binary) -> &'static str {
    match function {
        Binary::Add => "Add",
        Binary::Subtract => "Sub",
        Binary::Multiply => "Mul",
        Binary::Divide => "Div",
        Binary::Minimum => "Min",
        Binary::Maximum => "Max",
    }
}

impl ToOnnx for Add {
    fn to_onnx(&self, node: &mut Translation) -> Result<(), ExportError> {
        let [a, b] = [node.activation(0)?, node.activation(1)?];
        let c = node.plain("Add", &[&a, &b]);
        node.give(c)
    }
}

impl ToOnnx for Multiply {
    fn to_onnx(&self, node: &mut Translation) -> Result<(), ExportError> {
        let [a, mut b] = [node.operand(0)?, node.operand(1)?];
        // Factors of channels get the dimensions that they lack, unless PyTorch's shape has them.
        let (of_a, of_b) = (node.shape(0).len(), node.shape(1).len());
        match (of_a, of_b) {
            (4, 1) => {
                let dims = node.integers(&[-1, 1, 1]);
                b = node.plain("Reshape", &[&b, &dims]);
            }
            (4, 2) => b = node.unsqueeze(&b, &[2, 3]),
            (3, 2) => b = node.unsqueeze(&b, &[1]),
            _ => {}
        }
        let c = node.plain("Mul", &[&a, &b]);
        node.give(c)
    }
}

impl ToOnnx for LogSoftmax {
    fn to_onnx(&self, node: &mut Translation) -> Result<(), ExportError> {
        let x = node.operand(0)?;
        let y = node.onnx.node("LogSoftmax", &[&x], &[("axis", Attribute::Int(1))]);
        node.give(y)
    }
}

impl ToOnnx for ScaleClasses {
    fn to_onnx(&self, node: &mut Translation) -> Result<(), ExportError> {
        let x = node.operand(0)?;
        let factors = node.constant("factors", Tensor::floats(&[self.factors.len()], &self.factors));
        let y = node.plain("Mul", &[&x, &factors]);
        node.give(y)
    }
}

impl ToOnnx for SumClasses {
    fn to_onnx(&self, node: &mut Translation) -> Result<(), ExportError> {
        let x = node.operand(0)?;
        let axes = node.integers(&[1]);
        let y = node.onnx.node("ReduceSum", &[&x, &axes], &[("keepdims", Attribute::Int(0))]);
        node.give(y)
    }
}
