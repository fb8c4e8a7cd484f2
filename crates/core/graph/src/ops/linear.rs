//! Linear layers, and their gradients.

use super::{Matmuls, Operand, Operation};
use crate::autodiff::Backward;
use crate::{GraphError, Init, Layout, Node, Tensor, ValueId};

/// `y = x * w`, plus the bias if given. Tokens `[N,T,I]` are `N * T` rows, here and in the gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinearForward;

impl Operation for LinearForward {
    const NAME: &'static str = "linear";
    const SIGNATURE: &'static str = "(x [N,I], w [I,O], bias? [O]) -> (y [N,O])";
    const PYTORCH: Option<&'static str> = Some("torch.nn.Linear");

    fn matmuls(&self) -> Option<Matmuls> {
        Some(Matmuls { result: Operand::Output(0), weights: Operand::Input(1) })
    }

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        let [x, w] = [node.inputs[0], node.inputs[1]];
        backward.emit_gradient(w, LinearBackwardWeights, vec![x, dy]);
        if let Some(&bias) = node.inputs.get(2) {
            backward.emit_gradient(bias, BiasBackward, vec![dy]);
        }
        backward.emit_gradient(x, LinearBackwardData, vec![dy, w]);
        Ok(())
    }
}

/// The gradient of a linear layer's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinearBackwardData;

impl Operation for LinearBackwardData {
    const NAME: &'static str = "linear_backward_data";
    const SIGNATURE: &'static str = "(dy [N,O], w [I,O]) -> (dx [N,I])";

    fn matmuls(&self) -> Option<Matmuls> {
        Some(Matmuls { result: Operand::Input(0), weights: Operand::Input(1) })
    }
}

/// The gradient of a linear layer's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinearBackwardWeights;

impl Operation for LinearBackwardWeights {
    const NAME: &'static str = "linear_backward_weights";
    const SIGNATURE: &'static str = "(x [N,I], dy [N,O]) -> (dw [I,O])";

    fn matmuls(&self) -> Option<Matmuls> {
        Some(Matmuls { result: Operand::Input(1), weights: Operand::Output(0) })
    }
}

/// The gradient of a bias: the sum over all but the last dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BiasBackward;

impl Operation for BiasBackward {
    const NAME: &'static str = "bias_backward";
    const SIGNATURE: &'static str = "(dy) -> (db [C])";
}

/// Describes a linear layer. A number converts to a layer with that many outputs and PyTorch's defaults.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    pub(crate) outputs: usize,
    /// Of the weights beside a bias of 0, if it is not PyTorch's default.
    pub(crate) init: Option<Init>,
    pub(crate) bias: bool,
}

impl Linear {
    /// Weights and bias are initialised as in PyTorch's `Linear`: uniform within `1 / sqrt(inputs)`.
    pub fn new(outputs: usize) -> Self {
        Linear { outputs, init: None, bias: true }
    }

    /// Initialises the weights from a normal distribution with this std, and the bias to 0, as in torchvision's VGG
    /// and MobileNetV2.
    pub fn normal(self, std: f32) -> Self {
        Linear { init: Some(Init::Normal { std }), ..self }
    }

    /// Initialises the weights uniformly within `bound`, and the bias to 0, as in EfficientNets.
    pub fn uniform(self, bound: f32) -> Self {
        Linear { init: Some(Init::Uniform { bound }), ..self }
    }

    /// No bias.
    pub fn no_bias(self) -> Self {
        Linear { bias: false, ..self }
    }
}

impl From<usize> for Linear {
    fn from(outputs: usize) -> Self {
        Linear::new(outputs)
    }
}

impl Tensor {
    /// `y = x * w + bias`. Parameters are `NAME.weight` and, if it has a bias, `NAME.bias`.
    ///
    /// # Shapes
    /// `[N,I]` to `[N,outputs]`, or `[N,T,I]` to `[N,T,outputs]`.
    pub fn linear(self, name: &str, linear: impl Into<Linear>) -> Tensor {
        let Linear { outputs, init, bias: has_bias } = linear.into();
        self.enter(name);
        let shape = self.shape();
        let (inputs, result) = match shape[..] {
            [n, inputs] => (inputs, [n, outputs].into()),
            [n, t, inputs] => (inputs, [n, t, outputs].into()),
            _ => {
                let reason =
                    "it needs [batch,features] or [batch,tokens,channels]: add flatten or tokens before this layer";
                return self.fail(GraphError::Shape { place: self.layer("linear"), shape, reason: reason.into() });
            }
        };
        if outputs == 0 {
            return self.fail(GraphError::Attribute { place: self.layer("linear"), reason: "has no outputs".into() });
        }
        let uniform = Init::Uniform { bound: 1.0 / (inputs as f32).sqrt() };
        let (weight, bias) = init.map_or((uniform, uniform), |weight| (weight, Init::Constant(0.0)));
        let mut operands =
            vec![self.parameter(format!("{name}.weight"), [inputs, outputs].into(), Layout::Linear, weight)];
        if has_bias {
            operands.push(self.parameter(format!("{name}.bias"), [outputs].into(), Layout::Plain, bias));
        }
        self.record(LinearForward, &operands, result)
    }
}
