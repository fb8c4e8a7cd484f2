//! The sum of two tensors on the CPU.

use enmasse_graph::ops::Add;

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Workspace, kernel};
use crate::elementwise;

impl OnCpu for Add {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let a = o.input::<E>(0)?;
        let b = o.input(1)?;
        let sum = o.output(0)?;
        Ok(kernel!(Workspace::default(), c => elementwise::add(c, a, b, sum)))
    }
}
