//! From bytes of images to numbers on the CPU.

use enmasse_graph::ops::Normalize;

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Side, Workspace, kernel};
use crate::elementwise::{self, NormalizeTable};
use crate::region::Region;

impl OnCpu for Normalize {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let table = NormalizeTable::new(&self.mean, &self.std).ok_or_else(|| o.unsupported())?;
        if (o.size(Side::Input(0))?[2], o.size(Side::Output(0))?[2]) != (3, self.mean.len()) {
            return Err(o.unsupported());
        }
        let x = o.batch_input(0, |batch| Region::of(batch.images()))?;
        let y = o.output::<E>(0)?;
        Ok(kernel!(Workspace::default(), (c, step) => elementwise::normalize(c, &table, x.of(step), y)))
    }
}
