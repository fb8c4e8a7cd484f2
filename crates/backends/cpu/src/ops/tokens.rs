//! Tokens that all samples share, and some of the tokens of each sample, on the CPU.

use enmasse_graph::ops::{AddTokens, PrependTokens, SelectTokens, SelectTokensBackward, SumTokens};

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Side, Workspace, kernel};
use crate::tokens;

impl OnCpu for AddTokens {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let (batch, x, shared, y) = (o.preparation.plan.batch, o.input::<E>(0)?, o.input(1)?, o.output(0)?);
        Ok(kernel!(Workspace::default(), c => tokens::add(c, batch, x, shared, y)))
    }
}

impl OnCpu for PrependTokens {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let (batch, x, shared, y) = (o.preparation.plan.batch, o.input::<E>(0)?, o.input(1)?, o.output(0)?);
        Ok(kernel!(Workspace::default(), c => tokens::prepend(c, batch, x, shared, y)))
    }
}

impl OnCpu for SumTokens {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let (batch, dy, sums) = (o.preparation.plan.batch, o.input::<E>(0)?, o.output(0)?);
        Ok(kernel!(Workspace::default(), c => tokens::sum(c, batch, dy, sums)))
    }
}

impl OnCpu for SelectTokens {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let (batch, first) = (o.shape(Side::Input(0))?[0], first(o, self.first)?);
        let (x, y) = (o.input::<E>(0)?, o.output(0)?);
        Ok(kernel!(Workspace::default(), c => tokens::select(c, batch, first, x, y)))
    }
}

impl OnCpu for SelectTokensBackward {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let (batch, first) = (o.shape(Side::Input(0))?[0], first(o, self.first)?);
        let (dy, dx) = (o.input::<E>(0)?, o.output(0)?);
        Ok(kernel!(Workspace::default(), c => tokens::select_backward(c, batch, first, dy, dx)))
    }
}

/// Values of a sample before the first token.
fn first(o: &Operand, first: usize) -> Result<usize, DeviceError> {
    Ok(first * o.shape(Side::Input(0))?.last())
}
