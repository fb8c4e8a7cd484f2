//! The norm of all gradients on the CPU.

use enmasse_graph::Arena;
use enmasse_graph::ops::{GradientNorm, Operation};
use enmasse_tensor::DType;

use super::{DeviceError, Element, Instruction, OnCpu, Operand, kernel};
use crate::norm::Norm;

impl OnCpu for GradientNorm {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        // A scaled loss is for f16, which the CPU does not store.
        if self.scaled {
            return Err(o.unsupported());
        }
        let end = o.preparation.plan.adjacent_gradients(&o.node.inputs).ok_or_else(|| {
            let (layer, op) = (&o.node.layer, self.name());
            let reason = format!("layer {layer}: the cpu runs {op} only over neighbours in the gradient arena");
            DeviceError::Unsupported(reason)
        })?;
        let norm = Norm::new(o.preparation.range(Arena::Gradients, 0, 0, end / DType::F32.size()));
        let result = o.output(0)?;
        Ok(kernel!(norm.workspace(), c => norm.run(c, result)))
    }
}
