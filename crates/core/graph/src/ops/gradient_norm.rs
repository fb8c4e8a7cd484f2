//! The norm of all gradients.

use super::Operation;

/// The root of the sum of all squares. With a scale the gradients are first divided by it. If the update is cut over ranks, each adds up
/// the squares of its part, and the sums of all tensors are added in one order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GradientNorm {
    /// Whether there is a scale.
    pub scaled: bool,
}

impl Operation for GradientNorm {
    const NAME: &'static str = "gradient_norm";
    const SIGNATURE: &'static str = "(gradients.., scale? [1]) -> (norm [1])";
    const PYTORCH: Option<&'static str> = Some("torch.nn.utils.get_total_norm");

    fn attributes(&self) -> String {
        if self.scaled { "scaled".into() } else { String::new() }
    }
}
