//! Activations on the CPU.

use enmasse_graph::Activation;
use enmasse_graph::ops::ActivationBackward;

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Workspace, kernel};
use crate::elementwise;

impl OnCpu for Activation {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let activation = *self;
        let x = o.input::<E>(0)?;
        let y = o.output(0)?;
        Ok(kernel!(Workspace::default(), c => elementwise::activate(c, activation, x, y)))
    }
}

impl OnCpu for ActivationBackward {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let activation = self.0;
        let dy = o.input::<E>(0)?;
        let known = o.input(1)?;
        let dx = o.output(0)?;
        Ok(kernel!(Workspace::default(), c => elementwise::activate_backward(c, activation, dy, known, dx)))
    }
}
