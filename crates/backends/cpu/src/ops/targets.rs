//! Labels as rows of numbers on the CPU.

use enmasse_device::DeviceError;
use enmasse_graph::ops::Targets;

use super::OnCpu;
use crate::element::Element;
use crate::instruction::{Instruction, kernel};
use crate::prepare::Operand;
use crate::samples;
use crate::workspace::Workspace;

impl OnCpu for Targets {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let (labels, targets) = (o.labels(0)?, o.output(0)?);
        Ok(kernel!(Workspace::default(), (c, step) => samples::targets(c, labels.of(step), targets)))
    }
}
