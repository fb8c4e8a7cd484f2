//! The sum of a number per sample on the CPU.

use enmasse_graph::ops::{SampleSum, SampleSumBackward};

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Workspace, kernel};
use crate::samples;

impl OnCpu for SampleSum {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let scale = self.scale;
        let (values, labels, sum) = (o.input(0)?, o.labels_alone(1)?, o.output(0)?);
        Ok(kernel!(Workspace::default(), (_c, step) => samples::sample_sum(scale, values, labels.of(step), sum)))
    }
}

impl OnCpu for SampleSumBackward {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let scale = self.0.scale;
        let (labels, dvalues) = (o.labels_alone(0)?, o.output(0)?);
        Ok(kernel!(Workspace::default(), (_c, step) => samples::sample_sum_backward(scale, labels.of(step), dvalues)))
    }
}
