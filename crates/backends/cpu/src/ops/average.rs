//! The moving average of the weights on the CPU.

use enmasse_graph::ops::Average;

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Workspace, kernel};
use crate::average::Averages;

impl OnCpu for Average {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        // A scaled loss is for f16, which the CPU does not store.
        if self.scaled {
            return Err(o.unsupported());
        }
        let averages = averages(o)?;
        let decay = self.decay;
        Ok(kernel!(Workspace::default(), (c, step) => averages.follow(c, decay, step.optimizer_step)))
    }
}

/// The operands of an instruction: values, then as many averages.
pub(super) fn averages(o: &Operand) -> Result<Averages, DeviceError> {
    let count = o.node.inputs.len() / 2;
    let regions = (0..count).map(|index| Ok([o.input(index)?, o.input(count + index)?]));
    Ok(Averages::new(regions.collect::<Result<_, DeviceError>>()?))
}
