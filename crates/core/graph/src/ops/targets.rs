//! Labels as rows of numbers.

use super::Operation;

/// 1 at the label, 0 elsewhere; all zeros where there is no sample. Of a mixture `lambda` at the label plus `1 - lambda` at the
/// other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Targets;

impl Operation for Targets {
    const NAME: &'static str = "targets";
    const SIGNATURE: &'static str = "(labels i32 [N], other_labels? i32 [N], lambdas? [N]) -> (targets [N,K])";
    const PYTORCH: Option<&'static str> = Some("torch.nn.functional.one_hot");
}
