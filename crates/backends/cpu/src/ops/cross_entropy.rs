//! The cross-entropy over classes on the CPU.

use enmasse_graph::ops::{CrossEntropy, CrossEntropyBackward};

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Workspace, kernel};
use crate::loss;
use crate::sweep::Rows;

impl OnCpu for CrossEntropy {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let entropy = rows(self, o)?;
        let logits = o.input(0)?;
        let labels = o.labels(1)?;
        let (probabilities, loss, correct) = (o.output(0)?, o.output(1)?, o.output(2)?);
        Ok(kernel!(entropy.workspace(), (c, step) => {
            loss::forward(c, &entropy, logits, labels.of(step), probabilities, loss, correct);
        }))
    }
}

impl OnCpu for CrossEntropyBackward {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let entropy = rows(&self.0, o)?;
        let probabilities = o.input(0)?;
        let (labels, dlogits) = (o.labels(1)?, o.output(0)?);
        Ok(
            kernel!(Workspace::default(), (c, step) => loss::backward(c, &entropy, probabilities, labels.of(step), dlogits)),
        )
    }
}

fn rows(op: &CrossEntropy, o: &Operand) -> Result<loss::CrossEntropy, DeviceError> {
    let Rows { rows, channels } = o.rows(0)?;
    Ok(loss::CrossEntropy { samples: rows, classes: channels, scale: op.scale, smoothing: op.smoothing })
}
