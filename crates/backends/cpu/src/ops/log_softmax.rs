//! The logarithm of the softmax on the CPU.

use enmasse_graph::ops::{LogSoftmax, LogSoftmaxBackward};

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Workspace, kernel};
use crate::samples;

impl OnCpu for LogSoftmax {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let (classes, x, y) = (o.rows(0)?.channels, o.input(0)?, o.output(0)?);
        Ok(kernel!(Workspace::default(), c => samples::log_softmax(c, classes, x, y)))
    }
}

impl OnCpu for LogSoftmaxBackward {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let (classes, dy, y, dx) = (o.rows(0)?.channels, o.input(0)?, o.input(1)?, o.output(0)?);
        Ok(kernel!(Workspace::default(), c => samples::log_softmax_backward(c, classes, dy, y, dx)))
    }
}
