//! The logarithm of the softmax on the CPU.

use enmasse_graph::ops::{LogSoftmax, LogSoftmaxBackward};

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Workspace, kernel};
use crate::samples;

impl OnCpu for LogSoftmax {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let classes = o.rows(0)?.channels;
        let x = o.input(0)?;
        let y = o.output(0)?;
        Ok(kernel!(Workspace::default(), c => samples::log_softmax(c, classes, x, y)))
    }
}

impl OnCpu for LogSoftmaxBackward {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let classes = o.rows(0)?.channels;
        let dy = o.input(0)?;
        let y = o.input(1)?;
        let dx = o.output(0)?;
        Ok(kernel!(Workspace::default(), c => samples::log_softmax_backward(c, classes, dy, y, dx)))
    }
}
