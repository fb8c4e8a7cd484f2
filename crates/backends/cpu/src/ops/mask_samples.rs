//! Zeros for places without a sample, on the CPU.

use enmasse_graph::ops::MaskSamples;

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Workspace, kernel};
use crate::region::Region;
use crate::samples;

impl OnCpu for MaskSamples {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let (labels, y) = (o.labels_alone(1)?, o.output(0)?);
        if o.is_targets(0) {
            let targets = o.batch_input(0, |batch| Region::of(batch.targets()))?;
            return Ok(
                kernel!(Workspace::default(), (c, step) => samples::mask(c, targets.of(step), labels.of(step), y)),
            );
        }
        let x = o.input(0)?;
        Ok(kernel!(Workspace::default(), (c, step) => samples::mask(c, x, labels.of(step), y)))
    }
}
