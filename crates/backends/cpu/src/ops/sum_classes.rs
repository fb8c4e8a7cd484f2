//! The sum over classes on the CPU.

use enmasse_graph::ops::{SumClasses, SumClassesBackward};

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Workspace, kernel};
use crate::samples;

impl OnCpu for SumClasses {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let (x, y) = (o.input(0)?, o.output(0)?);
        Ok(kernel!(Workspace::default(), c => samples::sum_classes(c, x, y)))
    }
}

impl OnCpu for SumClassesBackward {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let (dy, dx) = (o.input(0)?, o.output(0)?);
        Ok(kernel!(Workspace::default(), c => samples::sum_classes_backward(c, dy, dx)))
    }
}
