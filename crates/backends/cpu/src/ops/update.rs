//! An optimiser's step on the CPU: regions of the arenas that its ranges index, after checking that every value is where they say.

use enmasse_graph::{Arena, Update};

use super::{DeviceError, Element, Instruction, OnCpu, Operand, kernel};
use crate::optimizers::{Clip, PreparedUpdate};

impl OnCpu for Update {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        // An error names the mismatch with the optimiser.
        let refuse = |problem: &str| {
            let (layer, optimizer) = (&o.node.layer, &self.optimizer);
            DeviceError::Unsupported(format!("layer {layer}: the cpu cannot run update {{{optimizer}}}: {problem}"))
        };
        let (operands, end) = self.in_plan(o.preparation.plan, &o.node.inputs).map_err(|why| refuse(&why))?;
        let region = |arena| o.preparation.range(arena, o.local, 0, end);
        let state: Vec<_> = (0..operands.state.len()).map(|slot| region(Arena::Optimizer(slot))).collect();
        let last = o.node.inputs.len() - 1;
        let clip = self.clip_norm.map(|limit| o.input(last).map(|norm| Clip { limit, norm })).transpose()?;
        let (weights, gradients) = (region(Arena::Parameters), region(Arena::Gradients));
        let other = || refuse("its state is that of another optimiser");
        let update = PreparedUpdate::new(self, weights, gradients, &state, clip).ok_or_else(other)?;
        Ok(kernel!(update.workspace(), (c, step) => update.run(c, step.learning_rate, step.optimizer_step)))
    }
}
