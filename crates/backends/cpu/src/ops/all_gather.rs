//! Copies of what each rank has updated to the others, from the CPU.

use enmasse_graph::Arena;
use enmasse_graph::ops::AllGather;

use super::all_reduce::parts;
use super::{DeviceError, Element, Instruction, OnCpu, Operand, Workspace, fallible};
use crate::collectives;

impl OnCpu for AllGather {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let (elements, ends) = parts(o, self.bucket)?;
        let parameters = o.preparation.range(Arena::Parameters, 0, elements.start, elements.len());
        Ok(fallible!(Workspace::default(), machine => collectives::all_gather(machine, parameters, &ends)))
    }
}
