//! Zeros for places without a sample, on the CPU.

use enmasse_graph::ops::MaskSamples;

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Workspace, kernel};
use crate::samples;

impl OnCpu for MaskSamples {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let (x, labels, y) = (o.input(0)?, o.labels_alone(1)?, o.output(0)?);
        Ok(kernel!(Workspace::default(), (c, step) => samples::mask(c, x, labels.of(step), y)))
    }
}
