//! Zeros in place of what is computed for places without a sample.

use super::Operation;
use crate::autodiff::Backward;
use crate::{GraphError, Node, ValueId};

/// `x`, with zeros where there is no sample.
///
/// The operation is its own gradient, which is 0 at those places even if dy is NaN; `y` may lie over `x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MaskSamples;

impl Operation for MaskSamples {
    const NAME: &'static str = "mask_samples";
    const SIGNATURE: &'static str = "(x [N,K], labels i32 [N]) -> (y [N,K])";

    fn in_place(&self) -> Option<(usize, usize)> {
        Some((0, 0))
    }

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        backward.emit_gradient(node.inputs[0], MaskSamples, vec![dy, node.inputs[1]]);
        Ok(())
    }
}
