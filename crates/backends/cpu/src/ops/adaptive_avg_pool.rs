//! Average pooling to a fixed size on the CPU.

use enmasse_graph::ops::{AdaptiveAvgPool, AdaptiveAvgPoolBackward};

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Side, Workspace, kernel};
use crate::pooling::Average;

impl OnCpu for AdaptiveAvgPool {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let average = Average::adaptive(o.pool(Side::Input(0), Side::Output(0))?);
        let x = o.input::<E>(0)?;
        let y = o.output(0)?;
        Ok(kernel!(Workspace::default(), c => average.forward(c, x, y)))
    }
}

impl OnCpu for AdaptiveAvgPoolBackward {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let average = Average::adaptive(o.pool(Side::Output(0), Side::Input(0))?);
        let dy = o.input::<E>(0)?;
        let dx = o.output(0)?;
        Ok(kernel!(Workspace::default(), c => average.backward(c, dy, dx)))
    }
}
