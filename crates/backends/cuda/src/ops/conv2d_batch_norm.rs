//! Convolution with the batch norm after it: no plan for a GPU has it, since cuDNN has no engine for it.

use enmasse_graph::ops::Conv2dBatchNorm;

use super::{Lowered, Lowering, OnCuda, Operands};

impl OnCuda for Conv2dBatchNorm {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        Err(o.unsupported())
    }
}
