//! Zeros for places without a sample, on the CPU.

use enmasse_device::DeviceError;
use enmasse_graph::ops::MaskSamples;

use super::OnCpu;
use crate::element::Element;
use crate::instruction::{Instruction, kernel};
use crate::prepare::Operand;
use crate::samples;
use crate::workspace::Workspace;

impl OnCpu for MaskSamples {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let (x, labels, y) = (o.input(0)?, o.labels_alone(1)?, o.output(0)?);
        Ok(kernel!(Workspace::default(), (c, step) => samples::mask(c, x, labels.of(step), y)))
    }
}
