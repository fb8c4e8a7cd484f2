//! The cross-entropy over classes, with label smoothing and mixtures of two samples.

use super::Operation;
use crate::Node;
use crate::autodiff::Backward;

/// The sum over samples of the cross-entropy times `scale`, and the number of samples whose largest logit (the first of equals)
/// is at the label.
///
/// A label below 0 marks a place without a sample, which adds nothing. Label smoothing is as in PyTorch: the target is
/// `1 - smoothing + smoothing/K` at the label, `smoothing/K` elsewhere. Of a mixture of two samples the label has the share
/// `lambda * (1 - smoothing)`, the other label `(1 - lambda) * (1 - smoothing)`. They may be equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropy {
    /// Factor of each sample's loss: 1 / global batch in training, 1 in evaluation.
    pub scale: f32,
    /// Label smoothing.
    pub smoothing: f32,
}

impl Operation for CrossEntropy {
    const NAME: &'static str = "cross_entropy";
    const SIGNATURE: &'static str = "(logits [N,K], labels i32 [N], other_labels? i32 [N], lambdas? [N]) -> \
                                     (probabilities [N,K], loss [1], correct [1])";
    const PYTORCH: Option<&'static str> = Some("torch.nn.CrossEntropyLoss");

    fn attributes(&self) -> String {
        format!("scale {} smoothing {}", self.scale, self.smoothing)
    }

    fn loss_gradient(&self, backward: &mut Backward, node: &Node) {
        let inputs = [&node.outputs[..1], &node.inputs[1..]].concat();
        backward.emit_gradient(node.inputs[0], CrossEntropyBackward(*self), inputs);
    }
}

/// `scale * (probability - target)`, and 0 where there is no sample; `dlogits` may lie over `probabilities`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropyBackward(pub CrossEntropy);

impl Operation for CrossEntropyBackward {
    const NAME: &'static str = "cross_entropy_backward";
    const SIGNATURE: &'static str =
        "(probabilities [N,K], labels i32 [N], other_labels? i32 [N], lambdas? [N]) -> (dlogits [N,K])";

    fn attributes(&self) -> String {
        self.0.attributes()
    }

    fn in_place(&self) -> Option<(usize, usize)> {
        Some((0, 0))
    }
}
