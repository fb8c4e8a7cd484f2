//! Convolution and the batch norm by constant statistics that follows it, as one operation.

use super::{Activation, Conv2d, Matmuls, Operation};

/// [`Conv2d`] without a bias, then [`super::BatchNormNormalize`] by the running statistics, with the same bits as one after the other: a
/// device normalises each piece of the result while it is in cache. Evaluation has it, and so do layers before all trained ones, since it
/// has no gradient. Where the result is in the cache arena, the node that reads it computes both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conv2dBatchNorm {
    /// The convolution.
    pub conv: Conv2d,
    /// Added to the variance.
    pub epsilon: f32,
    /// The activation, which is applied last.
    pub activation: Option<Activation>,
}

impl Operation for Conv2dBatchNorm {
    const NAME: &'static str = "conv2d_batch_norm";
    const SIGNATURE: &'static str = "(x, w, mean [C], variance [C], weight [C], bias [C], residual?) -> (y)";
    const PYTORCH: Option<&'static str> = Some("torch.nn.Conv2d, torch.nn.BatchNorm2d in evaluation");

    fn attributes(&self) -> String {
        let activation = self.activation.map_or_else(String::new, |activation| format!(" {}", activation.name()));
        format!("{} epsilon {}{activation}", self.conv, self.epsilon)
    }

    fn matmuls(&self) -> Option<Matmuls> {
        self.conv.matmuls()
    }
}
