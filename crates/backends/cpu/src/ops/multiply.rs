//! The product of two tensors, element by element, on the CPU.

use enmasse_device::DeviceError;
use enmasse_graph::ops::Multiply;

use super::OnCpu;
use crate::element::Element;
use crate::elementwise;
use crate::instruction::{Instruction, kernel};
use crate::prepare::Operand;
use crate::workspace::Workspace;

impl OnCpu for Multiply {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let (a, b, y) = (o.input::<E>(0)?, o.input(1)?, o.output(0)?);
        Ok(kernel!(Workspace::default(), c => elementwise::multiply(c, a, b, y)))
    }
}
