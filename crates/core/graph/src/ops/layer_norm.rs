//! Layer norm: over the channels of each sample, pixel or token.

use enmasse_tensor::DType;

use super::Operation;
use crate::autodiff::Backward;
use crate::{GraphError, Init, Layout, Node, Tensor, ValueId};

/// `(x - mean) * inverse_std * weight + bias`, with the mean and the biased variance over the last dimension and
/// `inverse_std = 1 / sqrt(variance + epsilon)`.
///
/// R is the number of rows: all dimensions but the last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNorm {
    /// Added to the variance.
    pub epsilon: f32,
}

impl Operation for LayerNorm {
    const NAME: &'static str = "layer_norm";
    const SIGNATURE: &'static str = "(x, weight [C], bias [C]) -> (y, mean [R], inverse_std [R])";
    const PYTORCH: Option<&'static str> = Some("torch.nn.LayerNorm");

    fn attributes(&self) -> String {
        format!("epsilon {}", self.epsilon)
    }

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        let [x, weight, bias] = [0, 1, 2].map(|i| node.inputs[i]);
        let [mean, inverse_std] = [node.outputs[1], node.outputs[2]];
        if backward.wants(weight) || backward.wants(bias) {
            let sums = backward.emit(LayerNormReduce, vec![dy, x, mean, inverse_std], &[bias, weight]);
            backward.add_gradient(bias, sums[0]);
            backward.add_gradient(weight, sums[1]);
        }
        backward.emit_gradient(x, LayerNormBackward, vec![dy, x, mean, inverse_std, weight]);
        Ok(())
    }
}

/// The gradient of a layer norm's input. With `z = (x - mean) * inverse_std` and `g = dy * weight` it is
/// `inverse_std * (g - mean of g - z * mean of (g * z))`, with means over the last dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerNormBackward;

impl Operation for LayerNormBackward {
    const NAME: &'static str = "layer_norm_backward";
    const SIGNATURE: &'static str = "(dy, x, mean [R], inverse_std [R], weight [C]) -> (dx)";
}

/// The gradients of a layer norm's bias and weight: sums over rows of `dy` and of `dy * (x - mean) * inverse_std`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerNormReduce;

impl Operation for LayerNormReduce {
    const NAME: &'static str = "layer_norm_reduce";
    const SIGNATURE: &'static str = "(dy, x, mean [R], inverse_std [R]) -> (dbias [C], dweight [C])";
}

impl Tensor {
    /// `(x - mean) / sqrt(variance + epsilon) * weight + bias` over the channels of each row. Parameters are `NAME.weight` and
    /// `NAME.bias`. PyTorch's default epsilon is 1e-5; vision transformers and ConvNeXt use 1e-6.
    ///
    /// # Shapes
    /// `[N,H,W,C]`, `[N,T,C]` or `[N,C]`, and the same.
    pub fn layer_norm(self, name: &str, epsilon: f32) -> Tensor {
        self.enter(name);
        let shape = self.shape();
        if shape.len() < 2 {
            let reason = "it needs channels as the last of at least two dimensions".into();
            return self.fail(GraphError::Shape { place: self.layer("layer_norm"), shape, reason });
        }
        if !(epsilon.is_finite() && epsilon > 0.0) {
            let reason = format!("has epsilon {epsilon}, which must be above 0");
            return self.fail(GraphError::Attribute { place: self.layer("layer_norm"), reason });
        }
        let channels = shape.last();
        let plain =
            |suffix: &str, init| self.parameter(format!("{name}.{suffix}"), [channels].into(), Layout::Plain, init);
        let operands = [plain("weight", Init::Constant(1.0)), plain("bias", Init::Constant(0.0))];
        let rows = shape.elements() / channels.max(1);
        let y = self.record(LayerNorm { epsilon }, &operands, shape);
        y.add_result("mean", [rows].into(), DType::F32);
        y.add_result("inverse_std", [rows].into(), DType::F32);
        y
    }
}
