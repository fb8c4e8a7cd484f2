//! An optimiser's step, over all of its ranges: `kernels/update.cu`. Nothing changes after a failure.

use enmasse_graph::{Arena, Update};

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::CudaError;
use crate::optimizers::{UpdateOperands, update};
use crate::work::{Memory, Place};

impl OnCuda for Update {
    fn lower(&self, o: &Operands, lowering: &mut Lowering) -> Lowered {
        let refuse = |why: String| {
            let (layer, optimizer) = (&o.node.layer, &self.optimizer);
            CudaError::Unsupported(format!("layer {layer}: the gpu cannot run update {{{optimizer}}}: {why}"))
        };
        let (operands, _) = self.in_plan(o.plan, &o.node.inputs).map_err(refuse)?;
        let start = |arena: Arena| Place { memory: Memory::Arena(arena), offset: 0 };
        let places = UpdateOperands {
            weights: start(Arena::Parameters),
            gradients: start(Arena::Gradients),
            state: (0..operands.state.len()).map(|slot| start(Arena::Optimizer(slot))).collect(),
            norm: operands.norm.map(|norm| o.span(norm)),
            scaling: operands.scaling.map(|scaling| o.scaling(scaling)),
        };
        let kernels = update(self, &places, &mut lowering.sequence.constants);
        Ok(computed(kernels.map_err(|why| refuse(why.to_owned()))?))
    }
}
