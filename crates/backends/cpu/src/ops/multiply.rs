//! The product of two tensors, element by element, on the CPU.

use enmasse_graph::ops::{Multiply, MultiplyReduce};

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Side, Workspace, kernel};
use crate::channels::{self, Shared};
use crate::elementwise;

impl OnCpu for Multiply {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let a = o.input::<E>(0)?;
        let c = o.output(0)?;
        if o.shape(Side::Input(0))? == o.shape(Side::Input(1))? {
            let b = o.input(1)?;
            return Ok(kernel!(Workspace::default(), context => elementwise::multiply(context, a, b, c)));
        }
        let size = shared(o, Side::Input(1))?;
        // Factors are activations of one pixel, or a matrix or a vector, which are f32.
        if o.is_stored_as::<E>(Side::Input(1))? {
            let b = o.input::<E>(1)?;
            return Ok(kernel!(Workspace::default(), context => channels::multiply(context, size, a, b, c)));
        }
        let b = o.input::<f32>(1)?;
        Ok(kernel!(Workspace::default(), context => channels::multiply(context, size, a, b, c)))
    }
}

impl OnCpu for MultiplyReduce {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let size = shared(o, Side::Output(0))?;
        let dy = o.input::<E>(0)?;
        let a = o.input(1)?;
        if o.is_stored_as::<E>(Side::Output(0))? {
            let db = o.output::<E>(0)?;
            return Ok(kernel!(size.workspace(), context => channels::multiply_reduce(context, size, dy, a, db)));
        }
        let db = o.output::<f32>(0)?;
        Ok(kernel!(size.workspace(), context => channels::multiply_reduce(context, size, dy, a, db)))
    }
}

/// How the elements of the first operand share the factors on a side.
fn shared(o: &Operand, factors: Side) -> Result<Shared, DeviceError> {
    let rows = o.rows(0)?;
    let samples = o.shape(factors)?.elements() / rows.channels.max(1);
    if samples == 0 || !rows.rows.is_multiple_of(samples) {
        return Err(o.unsupported());
    }
    Ok(Shared { samples, rows: rows.rows / samples, channels: rows.channels })
}
