//! What stages exchange, which the GPU does not.

use enmasse_graph::ops::{ReceiveFrom, SendTo, SumStages, Zeros};

use super::{Lowered, Lowering, OnCuda, Operands};
use crate::error::CudaError;

impl OnCuda for SendTo {
    fn lower(&self, _: &Operands, _: &mut Lowering) -> Lowered {
        refused()
    }
}

impl OnCuda for ReceiveFrom {
    fn lower(&self, _: &Operands, _: &mut Lowering) -> Lowered {
        refused()
    }
}

impl OnCuda for Zeros {
    fn lower(&self, _: &Operands, _: &mut Lowering) -> Lowered {
        refused()
    }
}

impl OnCuda for SumStages {
    fn lower(&self, _: &Operands, _: &mut Lowering) -> Lowered {
        refused()
    }
}

fn refused() -> Lowered {
    Err(CudaError::Unsupported(
        "a model in stages runs on the cpu only: leave out `stages`, or use `devices = cpu`".into(),
    ))
}
