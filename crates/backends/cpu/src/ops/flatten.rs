//! From images to rows of features, in PyTorch's order, on the CPU.

use enmasse_graph::ops::{Flatten, FlattenBackward};

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Side, Workspace, kernel};
use crate::elementwise;

impl OnCpu for Flatten {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let [height, width, channels] = o.size(Side::Input(0))?;
        let sizes = [o.preparation.plan.batch, height * width, channels];
        let (x, y) = (o.input::<E>(0)?, o.output::<f32>(0)?);
        Ok(kernel!(Workspace::default(), c => elementwise::transpose(c, sizes, x, y)))
    }
}

impl OnCpu for FlattenBackward {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let [height, width, channels] = o.size(Side::Output(0))?;
        let sizes = [o.preparation.plan.batch, channels, height * width];
        let (x, y) = (o.input::<f32>(0)?, o.output::<E>(0)?);
        Ok(kernel!(Workspace::default(), c => elementwise::transpose(c, sizes, x, y)))
    }
}
