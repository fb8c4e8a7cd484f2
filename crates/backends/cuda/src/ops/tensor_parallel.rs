//! What ranks exchange that have a part of each cut layer, which the GPU does not.

use enmasse_graph::ops::{CopyToRanks, SumOverRanks, SumRequests};

use super::{Lowered, Lowering, OnCuda, Operands};
use crate::error::CudaError;

impl OnCuda for CopyToRanks {
    fn lower(&self, _: &Operands, _: &mut Lowering) -> Lowered {
        refused()
    }
}

impl OnCuda for SumOverRanks {
    fn lower(&self, _: &Operands, _: &mut Lowering) -> Lowered {
        refused()
    }
}

impl OnCuda for SumRequests {
    fn lower(&self, _: &Operands, _: &mut Lowering) -> Lowered {
        refused()
    }
}

fn refused() -> Lowered {
    Err(CudaError::Unsupported(
        "a tensor-parallel model runs on the cpu only: leave out `tensor_parallel`, or use `devices = cpu`".into(),
    ))
}
