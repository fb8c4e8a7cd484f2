//! Linear layers on the CPU: convolutions of one pixel.

use enmasse_graph::ops::{BiasBackward, LinearBackwardData, LinearBackwardWeights, LinearForward};

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Side, kernel};
use crate::batch_norm;
use crate::conv::ConvShape;

impl OnCpu for LinearForward {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        o.forward::<E>(shape(o, Side::Input(0), Side::Output(0))?)
    }
}

impl OnCpu for LinearBackwardData {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        o.backward_data::<E>(shape(o, Side::Output(0), Side::Input(0))?)
    }
}

impl OnCpu for LinearBackwardWeights {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        o.backward_weights::<E>(shape(o, Side::Input(0), Side::Input(1))?, None)
    }
}

impl OnCpu for BiasBackward {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let size = o.rows(0)?;
        let dy = o.input::<E>(0)?;
        let sums = o.output(0)?;
        Ok(kernel!(size.workspace(), c => batch_norm::bias_backward(c, size, dy, sums)))
    }
}

fn shape(o: &Operand, x: Side, y: Side) -> Result<ConvShape, DeviceError> {
    let ([_, tokens, inputs], [_, _, outputs]) = (o.size(x)?, o.size(y)?);
    Ok(ConvShape::linear(o.preparation.plan.batch, tokens, inputs, outputs))
}
