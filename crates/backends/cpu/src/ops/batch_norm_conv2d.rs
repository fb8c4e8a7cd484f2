//! Convolution of what a batch norm makes of its source, on the CPU: pixels are normalised as they are loaded.

use enmasse_graph::ops::{BatchNormConv2d, BatchNormConv2dBackwardWeights, BatchNormNormalize};

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Side};
use crate::conv::{ConvShape, SourceNorm, Start};
use crate::statistics::Moments;

impl OnCpu for BatchNormConv2d {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let shape = o.conv(self.conv, Side::Input(0), Side::Output(0))?;
        let start = o.optional(6)?.map_or(Start::Zero, Start::Bias);
        o.matmul::<E>(&ConvShape { normalized: true, ..shape }, start, false, Some(norm(o, &self.norm)?))
    }
}

impl OnCpu for BatchNormConv2dBackwardWeights {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let shape = o.conv(self.0.conv, Side::Input(0), Side::Input(1))?;
        o.backward_weights::<E>(shape, Some(norm(o, &self.0.norm)?))
    }
}

fn norm(
    o: &Operand,
    &BatchNormNormalize { epsilon, activation, .. }: &BatchNormNormalize,
) -> Result<SourceNorm, DeviceError> {
    let moments = Moments { mean: o.input(2)?, variance: o.input(3)? };
    Ok(SourceNorm { moments, weight: o.input(4)?, bias: o.input(5)?, epsilon, activation })
}
