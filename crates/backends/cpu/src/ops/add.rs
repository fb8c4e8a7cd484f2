//! The sum of two tensors on the CPU.

use enmasse_graph::ops::Add;

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Workspace, kernel};
use crate::elementwise;

impl OnCpu for Add {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let (a, b, sum) = (o.input::<E>(0)?, o.input(1)?, o.output(0)?);
        Ok(kernel!(Workspace::default(), c => elementwise::add(c, a, b, sum)))
    }
}
