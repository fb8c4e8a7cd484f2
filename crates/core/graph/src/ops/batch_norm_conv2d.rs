//! Batch norm and the convolution after it as one operation, and its gradients.

use super::{BatchNormNormalize, BiasBackward, Conv2d, Conv2dBackwardData, Conv2dBackwardWeights};
use super::{Matmuls, Operation};
use crate::autodiff::Backward;
use crate::{GraphError, Node, ValueId};

/// [`BatchNormNormalize`] without a residual, then [`Conv2d`], with the same bits as one after the other: a device normalises `x` as the
/// convolution loads it, and never stores the result, of which padding is part. Further results are those of [`Conv2d`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormConv2d {
    /// The normalisation.
    pub norm: BatchNormNormalize,
    /// The convolution.
    pub conv: Conv2d,
}

impl Operation for BatchNormConv2d {
    const NAME: &'static str = "batch_norm_conv2d";
    const SIGNATURE: &'static str = "(x, w, mean [C], variance [C], weight [C], bias [C], conv_bias? [C]) -> (y, mean_of_y? [C], variance_of_y? [C])";
    const PYTORCH: Option<&'static str> = Some("torch.nn.BatchNorm2d, torch.nn.Conv2d");

    fn attributes(&self) -> String {
        format!("{} {}", self.norm.attributes(), self.conv)
    }

    fn matmuls(&self) -> Option<Matmuls> {
        self.conv.matmuls()
    }

    fn is_of_batch(&self) -> bool {
        true
    }

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        let x = node.inputs[0];
        let w = node.inputs[1];
        let of_norm = &node.inputs[2..6];
        let inputs = [x, dy].iter().chain(of_norm).copied().collect();
        backward.emit_gradient(w, BatchNormConv2dBackwardWeights(*self), inputs);
        if let Some(&bias) = node.inputs.get(6) {
            backward.emit_gradient(bias, BiasBackward, vec![dy]);
        }
        let inputs: Vec<ValueId> = [x].iter().chain(of_norm).copied().collect();
        if !inputs.iter().any(|&input| backward.wants(input)) {
            return Ok(());
        }
        let normalized = backward.emit(Conv2dBackwardData(self.conv), vec![dy, w], &[x])[0];
        // The other results are statistics.
        let outputs = node.outputs[..1].to_vec();
        self.norm.gradient(backward, &Node { op: self.norm.into(), inputs, outputs, ..node.clone() }, normalized)
    }
}

/// The gradient of the convolution's weights: [`Conv2dBackwardWeights`] of what the batch norm makes of `x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormConv2dBackwardWeights(pub BatchNormConv2d);

impl Operation for BatchNormConv2dBackwardWeights {
    const NAME: &'static str = "batch_norm_conv2d_backward_weights";
    const SIGNATURE: &'static str = "(x, dy, mean [C], variance [C], weight [C], bias [C]) -> (dw)";

    fn attributes(&self) -> String {
        self.0.attributes()
    }

    fn matmuls(&self) -> Option<Matmuls> {
        Conv2dBackwardWeights(self.0.conv).matmuls()
    }

    fn is_of_batch(&self) -> bool {
        true
    }
}
