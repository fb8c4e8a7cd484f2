//! Whether the label is among the best classes, on the CPU.

use enmasse_graph::ops::TopKCorrect;

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Workspace, kernel};
use crate::samples;

impl OnCpu for TopKCorrect {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let k = self.k;
        let (logits, labels, correct) = (o.input(0)?, o.labels_alone(1)?, o.output(0)?);
        Ok(kernel!(Workspace::default(), (c, step) => samples::top_k_correct(c, k, logits, labels.of(step), correct)))
    }
}
