//! The check of the loss on the CPU.

use enmasse_graph::ops::CheckFinite;

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Workspace, fallible};
use crate::collectives;

impl OnCpu for CheckFinite {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let losses = o.input(0)?.part(0, o.preparation.plan.shards);
        Ok(fallible!(Workspace::default(), _machine => collectives::check_finite(losses)))
    }
}
