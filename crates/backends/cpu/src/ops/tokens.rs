//! Tokens that all samples share, and some of the tokens of each sample, on the CPU.

use enmasse_graph::ops::{AddTokens, PrependTokens, SelectTokens, SelectTokensBackward, SumTokens};

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Side, Workspace, kernel};
use crate::tokens;

impl OnCpu for AddTokens {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let batch = o.preparation.plan.batch;
        let x = o.input::<E>(0)?;
        let shared = o.input(1)?;
        let y = o.output(0)?;
        Ok(kernel!(Workspace::default(), c => tokens::add(c, batch, x, shared, y)))
    }
}

impl OnCpu for PrependTokens {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let batch = o.preparation.plan.batch;
        let x = o.input::<E>(0)?;
        let shared = o.input(1)?;
        let y = o.output(0)?;
        Ok(kernel!(Workspace::default(), c => tokens::prepend(c, batch, x, shared, y)))
    }
}

impl OnCpu for SumTokens {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let batch = o.preparation.plan.batch;
        let dy = o.input::<E>(0)?;
        let sums = o.output(0)?;
        Ok(kernel!(Workspace::default(), c => tokens::sum(c, batch, dy, sums)))
    }
}

impl OnCpu for SelectTokens {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let batch = o.shape(Side::Input(0))?[0];
        let first = first(o, self.first)?;
        let x = o.input::<E>(0)?;
        let y = o.output(0)?;
        Ok(kernel!(Workspace::default(), c => tokens::select(c, batch, first, x, y)))
    }
}

impl OnCpu for SelectTokensBackward {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let batch = o.shape(Side::Input(0))?[0];
        let first = first(o, self.first)?;
        let dy = o.input::<E>(0)?;
        let dx = o.output(0)?;
        Ok(kernel!(Workspace::default(), c => tokens::select_backward(c, batch, first, dy, dx)))
    }
}

/// Values of a sample before the first token.
fn first(o: &Operand, first: usize) -> Result<usize, DeviceError> {
    Ok(first * o.shape(Side::Input(0))?.last())
}
