//! What the ranks exchange that have a part of a layer each (tensor parallelism): where they begin to compute different things, and where
//! their results become one.

use std::ops::Range;

use super::{BiasBackward, Operation};
use crate::autodiff::Backward;
use crate::{GraphError, Node, ValueId};

/// The same values, for a layer of which each rank computes a part: Megatron-LM's `f`. Each rank finds a part of the gradient, and they are
/// added up. `y` may lie over `x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CopyToRanks {
    /// Ranks that have a part of the layer.
    pub ranks: usize,
}

impl Operation for CopyToRanks {
    const NAME: &'static str = "copy_to_ranks";
    const SIGNATURE: &'static str = "(x) -> (y)";

    fn attributes(&self) -> String {
        format!("ranks {}", self.ranks)
    }

    fn in_place(&self) -> Option<(usize, usize)> {
        Some((0, 0))
    }

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        backward.emit_gradient(node.inputs[0], SumOverRanks { ranks: self.ranks }, vec![dy]);
        Ok(())
    }
}

/// The sum of `x` over the ranks that have a part of a layer, on each of them, plus the bias if given: Megatron-LM's `g`. All elements are
/// added in the fixed tree over ranks. Each rank's gradient is that of the sum. `y` may lie over `x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SumOverRanks {
    /// Ranks that have a part of the layer.
    pub ranks: usize,
}

impl Operation for SumOverRanks {
    const NAME: &'static str = "sum_over_ranks";
    const SIGNATURE: &'static str = "(x, bias? [C]) -> (y)";
    const PYTORCH: Option<&'static str> = Some("torch.distributed.all_reduce");

    fn attributes(&self) -> String {
        format!("ranks {}", self.ranks)
    }

    fn in_place(&self) -> Option<(usize, usize)> {
        Some((0, 0))
    }

    fn gradient(&self, backward: &mut Backward, node: &Node, dy: ValueId) -> Result<(), GraphError> {
        if let Some(&bias) = node.inputs.get(1) {
            backward.emit_gradient(bias, BiasBackward, vec![dy]);
        }
        backward.add_gradient(node.inputs[0], dy);
        Ok(())
    }
}

/// Adds up the requests to stop and to save, the last two numbers of a step's metrics, over the ranks that have a part of each layer. The
/// other metrics are the same on all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SumRequests;

impl Operation for SumRequests {
    const NAME: &'static str = "sum_requests";
    const SIGNATURE: &'static str = "(metrics [shards + n + 2]) -> ()";
    const PYTORCH: Option<&'static str> = Some("torch.distributed.all_reduce");

    fn changes(&self, _: usize) -> Range<usize> {
        0..1
    }
}
