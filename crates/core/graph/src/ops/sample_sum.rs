//! The sum of a number per sample: a loss, or a metric.

use super::Operation;
use crate::Node;
use crate::autodiff::Backward;

/// The sum over samples, times `scale`. Values at places without a sample are left out, even if they are NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleSum {
    /// Factor of the sum.
    pub scale: f32,
}

impl Operation for SampleSum {
    const NAME: &'static str = "sample_sum";
    const SIGNATURE: &'static str = "(values [N], labels i32 [N]) -> (sum [1])";

    fn attributes(&self) -> String {
        format!("scale {}", self.scale)
    }

    // The loss node is the first of its kind: those of metrics come after it.
    fn loss_gradient(&self, backward: &mut Backward, node: &Node) {
        backward.emit_gradient(node.inputs[0], SampleSumBackward(*self), vec![node.inputs[1]]);
    }
}

/// `scale`, and 0 where there is no sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleSumBackward(pub SampleSum);

impl Operation for SampleSumBackward {
    const NAME: &'static str = "sample_sum_backward";
    const SIGNATURE: &'static str = "(labels i32 [N]) -> (dvalues [N])";

    fn attributes(&self) -> String {
        self.0.attributes()
    }
}
