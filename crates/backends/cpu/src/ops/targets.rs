//! Labels as rows of numbers on the CPU.

use enmasse_graph::ops::Targets;

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Workspace, kernel};
use crate::samples;

impl OnCpu for Targets {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let (labels, targets) = (o.labels(0)?, o.output(0)?);
        Ok(kernel!(Workspace::default(), (c, step) => samples::targets(c, labels.of(step), targets)))
    }
}
