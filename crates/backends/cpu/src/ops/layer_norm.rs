//! Layer norm on the CPU.

use enmasse_graph::ops::{LayerNorm, LayerNormBackward, LayerNormReduce};

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Workspace, kernel};
use crate::layer_norm::{self, Forward, Gradient};

impl OnCpu for LayerNorm {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let size = o.rows(0)?;
        let epsilon = self.epsilon;
        let x = o.input::<E>(0)?;
        let weight = o.input(1)?;
        let bias = o.input(2)?;
        let (y, mean, inverse_std) = (o.output(0)?, o.output(1)?, o.output(2)?);
        let forward = Forward { size, x, weight, bias, y, mean, inverse_std, epsilon };
        Ok(kernel!(Workspace::default(), c => layer_norm::forward(c, &forward)))
    }
}

impl OnCpu for LayerNormBackward {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let gradient = gradient::<E>(o)?;
        let weight = o.input(4)?;
        let dx = o.output(0)?;
        Ok(kernel!(Workspace::default(), c => layer_norm::backward(c, &gradient, weight, dx)))
    }
}

impl OnCpu for LayerNormReduce {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let gradient = gradient::<E>(o)?;
        let dbias = o.output(0)?;
        let dweight = o.output(1)?;
        Ok(kernel!(gradient.size.workspace(), c => layer_norm::reduce(c, &gradient, dbias, dweight)))
    }
}

fn gradient<E: Element>(o: &Operand) -> Result<Gradient<E>, DeviceError> {
    let (size, dy, x) = (o.rows(0)?, o.input(0)?, o.input(1)?);
    Ok(Gradient { size, dy, x, mean: o.input(2)?, inverse_std: o.input(3)? })
}
