//! From bytes of images to numbers on the CPU.

use enmasse_device::DeviceError;
use enmasse_graph::ops::Normalize;

use super::OnCpu;
use crate::element::Element;
use crate::elementwise::{self, NormalizeTable};
use crate::instruction::{Instruction, kernel};
use crate::prepare::{Operand, Side};
use crate::region::Region;
use crate::workspace::Workspace;

impl OnCpu for Normalize {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let table = NormalizeTable::new(&self.mean, &self.std).ok_or_else(|| o.unsupported())?;
        if (o.size(Side::Input(0))?[2], o.size(Side::Output(0))?[2]) != (3, self.mean.len()) {
            return Err(o.unsupported());
        }
        let (x, y) = (o.batch_input(0, |batch| Region::of(batch.images()))?, o.output::<E>(0)?);
        Ok(kernel!(Workspace::default(), (c, step) => elementwise::normalize(c, &table, x.of(step), y)))
    }
}
