//! The slow weights of Lookahead on the CPU.

use enmasse_graph::ops::Lookahead;

use super::average::averages;
use super::{DeviceError, Element, Instruction, OnCpu, Operand, Workspace, kernel};

impl OnCpu for Lookahead {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let averages = averages(o)?;
        Ok(kernel!(Workspace::default(), (c, step) => {
            if let Some(alpha) = step.lookahead {
                averages.join(c, alpha);
            }
        }))
    }
}
