//! Operations of a program's own on the CPU.

use std::cell::RefCell;

use enmasse_graph::ops::{Custom, Operation};
use enmasse_tensor::DType;

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Workspace, kernel};
use crate::region::Region;

impl OnCpu for Custom {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        if E::DTYPE != DType::F32 {
            let layer = &o.node.layer;
            let name = self.name();
            let reason = format!("layer {layer}: {name} computes in f32 alone: use `precision = f32`");
            return Err(DeviceError::Unsupported(reason));
        }
        if o.node.inputs.len() > Custom::MAX_OPERANDS {
            return Err(o.unsupported());
        }
        let operation = self.clone();
        let operands =
            (0..o.node.inputs.len()).map(|index| o.input::<f32>(index)).collect::<Result<Vec<Region<f32>>, _>>()?;
        let result = o.output::<f32>(0)?;
        Ok(kernel!(Workspace::default(), context => {
            // A step allocates nothing.
            let mut slices: [&[f32]; Custom::MAX_OPERANDS] = [&[]; Custom::MAX_OPERANDS];
            for (slice, operand) in slices.iter_mut().zip(&operands) {
                *slice = operand.slice(0, operand.len());
            }
            let pool = RefCell::new(&mut context.pool);
            let parallel = |jobs: usize, job: &(dyn Fn(usize) + Sync)| pool.borrow_mut().run(jobs, |index, _| job(index));
            operation.compute(&slices[..operands.len()], result.slice_mut(0, result.len()), &parallel);
        }))
    }
}
