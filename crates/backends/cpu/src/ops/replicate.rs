//! Copies from the first rank to the others, from the CPU.

use enmasse_graph::ops::Replicate;

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Workspace, fallible};
use crate::collectives;

impl OnCpu for Replicate {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let values = (0..o.node.inputs.len()).map(|index| o.input(index)).collect::<Result<Vec<_>, _>>()?;
        let ranges = collectives::adjacent(values);
        Ok(fallible!(Workspace::default(), machine => collectives::replicate(machine, &ranges)))
    }
}
