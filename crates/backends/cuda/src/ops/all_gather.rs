//! An update that is cut over ranks, which GPUs do not run.

use enmasse_graph::ops::{AllGather, ReduceScatterStart, ReduceScatterWait};

use super::{Lowered, Lowering, OnCuda, Operands};
use crate::CudaError;

impl OnCuda for ReduceScatterStart {
    fn lower(&self, _: &Operands, _: &mut Lowering) -> Lowered {
        Err(refused())
    }
}

impl OnCuda for ReduceScatterWait {
    fn lower(&self, _: &Operands, _: &mut Lowering) -> Lowered {
        Err(refused())
    }
}

impl OnCuda for AllGather {
    fn lower(&self, _: &Operands, _: &mut Lowering) -> Lowered {
        Err(refused())
    }
}

fn refused() -> CudaError {
    let reason = "`strategy = zero1`: GPUs do not cut the optimiser's state over ranks; use `strategy = ddp`";
    CudaError::Unsupported(reason.to_owned())
}
