//! Convolution of what a batch norm makes of its source: no plan for a GPU has it, since cuDNN has no engine for it.

use enmasse_graph::ops::{BatchNormConv2d, BatchNormConv2dBackwardWeights};

use super::{Lowered, Lowering, OnCuda, Operands};

impl OnCuda for BatchNormConv2d {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Err(o.unsupported())
    }
}

impl OnCuda for BatchNormConv2dBackwardWeights {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Err(o.unsupported())
    }
}
