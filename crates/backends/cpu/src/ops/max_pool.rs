//! Max pooling on the CPU.

use enmasse_graph::ops::{MaxPool, MaxPoolBackward};

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Side, Workspace, kernel};
use crate::pooling::Maximum;

impl OnCpu for MaxPool {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let shape = o.pool(Side::Input(0), Side::Output(0))?;
        // Positions are bytes, from 0.
        if self.0.kernel[0] * self.0.kernel[1] > usize::from(u8::MAX) + 1 {
            return Err(o.unsupported());
        }
        let x = o.input::<E>(0)?;
        let y = o.output(0)?;
        let position = o.output(1)?;
        let maximum = Maximum::new(shape, &self.0);
        Ok(kernel!(Workspace::default(), c => maximum.forward(c, x, y, position)))
    }
}

impl OnCpu for MaxPoolBackward {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let maximum = Maximum::new(o.pool(Side::Output(0), Side::Input(0))?, &self.0);
        let dy = o.input::<E>(0)?;
        let position = o.input(1)?;
        let dx = o.output(0)?;
        Ok(kernel!(Workspace::default(), c => maximum.backward(c, dy, position, dx)))
    }
}
