//! Attention on the CPU.

use enmasse_graph::ops::{Attention, AttentionBackward};

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Side, kernel};
use crate::attention::{self, Backward, Forward, Size};

impl OnCpu for Attention {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let size = size(o, Side::Input(0), self.heads)?;
        let forward = Forward { size, qkv: o.input::<E>(0)?, y: o.output(0)?, log_sum_exp: o.output(1)? };
        Ok(kernel!(size.workspace(o.preparation.kernels.isa), c => attention::forward(c, &forward)))
    }
}

impl OnCpu for AttentionBackward {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let size = size(o, Side::Input(1), self.heads)?;
        let dy = o.input::<E>(0)?;
        let qkv = o.input(1)?;
        let y = o.input(2)?;
        let log_sum_exp = o.input(3)?;
        let backward = Backward { size, dy, qkv, y, log_sum_exp, dqkv: o.output(0)? };
        Ok(kernel!(size.backward_workspace(o.preparation.kernels.isa), c => attention::backward(c, &backward)))
    }
}

fn size(o: &Operand, qkv: Side, heads: usize) -> Result<Size, DeviceError> {
    let [_, tokens, packed] = o.size(qkv)?;
    Ok(Size { batch: o.preparation.plan.batch, tokens, heads, head: packed / 3 / heads })
}
