//! A factor for each class on the CPU.

use enmasse_graph::ops::ScaleClasses;

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Workspace, kernel};
use crate::samples;

impl OnCpu for ScaleClasses {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        if self.factors.len() != o.rows(0)?.channels {
            return Err(o.unsupported());
        }
        let factors = self.factors.clone();
        let x = o.input(0)?;
        let y = o.output(0)?;
        Ok(kernel!(Workspace::default(), c => samples::scale_classes(c, &factors, x, y)))
    }
}
