//! The weight of the loss on the CPU. The loss is scaled by state for f16, which the CPU does not store.

use enmasse_graph::ops::{Scale, Unscale, UpdateScale};

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Workspace, kernel};
use crate::samples;

impl OnCpu for Scale {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        if !o.is_loss_weight(1) {
            return Err(o.unsupported());
        }
        let (x, y) = (o.input(0)?, o.output(0)?);
        Ok(kernel!(Workspace::default(), (c, step) => samples::scale(c, step.batch.loss_weight(), x, y)))
    }
}

impl OnCpu for Unscale {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        Err(o.unsupported())
    }
}

impl OnCpu for UpdateScale {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        Err(o.unsupported())
    }
}
