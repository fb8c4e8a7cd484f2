//! Functions of one number on the CPU.

use enmasse_graph::ops::{Function, FunctionBackward};

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Workspace, kernel};
use crate::function;

impl OnCpu for Function {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let function = *self;
        let x = o.input::<E>(0)?;
        let y = o.output(0)?;
        Ok(kernel!(Workspace::default(), c => function::map(c, function, x, y)))
    }
}

impl OnCpu for FunctionBackward {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let function = self.0;
        let dy = o.input::<E>(0)?;
        let x = o.input(1)?;
        let dx = o.output(0)?;
        Ok(kernel!(Workspace::default(), c => function::map_backward(c, function, dy, x, dx)))
    }
}
