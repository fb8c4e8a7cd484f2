//! The norm of all gradients on the CPU.

use enmasse_graph::Arena;
use enmasse_graph::ops::{GradientNorm, Operation};
use enmasse_tensor::DType;

use super::{DeviceError, Element, Instruction, OnCpu, Operand, fallible};
use crate::collectives;
use crate::norm::Norm;

impl OnCpu for GradientNorm {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        // A scaled loss is for f16, which the CPU does not store.
        if self.scaled {
            return Err(o.unsupported());
        }
        let plan = o.preparation.plan;
        let end = plan.adjacent_gradients(&o.node.inputs).ok_or_else(|| {
            let layer = &o.node.layer;
            let op = self.name();
            let reason = format!("layer {layer}: the cpu runs {op} only over neighbours in the gradient arena");
            DeviceError::Unsupported(reason)
        })?;
        let tensors = o.node.inputs.iter().map(|&id| {
            let start = plan.slot(id).offset / DType::F32.size();
            (start..start + plan.shape(id).elements(), plan.holds(id))
        });
        let norm = Norm::new(o.preparation.range(Arena::Gradients, 0, 0, end / DType::F32.size()), tensors);
        let result = o.output(0)?;
        let is_partitioned = plan.is_partitioned();
        Ok(fallible!(norm.workspace(), machine => {
            norm.add_squares(&mut machine.context);
            if is_partitioned {
                collectives::add_up(machine, norm.sums(&machine.context))?;
            }
            norm.finish(&machine.context, result);
            Ok(())
        }))
    }
}
