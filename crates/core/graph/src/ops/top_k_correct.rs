//! Whether the label is among the best classes.

use super::Operation;

/// 1 where the label's logit is one of the `k` largest of its sample, else 0, and 0 where there is no sample.
///
/// Of equal logits the first counts as the largest, as in [`super::CrossEntropy`], whose correct ones are those with `k` = 1. It
/// is not correct if the label's logit is NaN; other NaN logits are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TopKCorrect {
    /// The number of largest logits that count.
    pub k: usize,
}

impl Operation for TopKCorrect {
    const NAME: &'static str = "top_k_correct";
    const SIGNATURE: &'static str = "(logits [N,K], labels i32 [N]) -> (top_k_correct [N])";
    const PYTORCH: Option<&'static str> = Some("torch.topk");

    fn attributes(&self) -> String {
        format!("k {}", self.k)
    }
}
