//! An optimiser's step on the CPU: regions of the arenas that its ranges index, after checking that every value is where they say.
//!
//! A rank that updates a part of the parameters has the state of that part alone, one piece after another.

use enmasse_graph::{Arena, Update, UpdateRange, UpdatedPart};

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Workspace, kernel};
use crate::optimizers::{Clip, PreparedUpdate};

impl OnCpu for Update {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        // An error names the mismatch with the optimiser.
        let refuse = |problem: &str| {
            let (layer, optimizer) = (&o.node.layer, &self.optimizer);
            DeviceError::Unsupported(format!("layer {layer}: the cpu cannot run update {{{optimizer}}}: {problem}"))
        };
        let (operands, end) = self.in_plan(o.preparation.plan, &o.node.inputs).map_err(|why| refuse(&why))?;
        let last = o.node.inputs.len() - 1;
        let clip = self.clip_norm.map(|limit| o.input(last).map(|norm| Clip { limit, norm })).transpose()?;
        let prepare = |UpdatedPart { elements, state }: UpdatedPart| {
            let start = elements.start;
            let len = elements.end.min(end).saturating_sub(elements.start);
            let region = |arena, start| o.preparation.range(arena, o.local, start, len);
            let states: Vec<_> = (0..operands.state.len()).map(|slot| region(Arena::Optimizer(slot), state)).collect();
            let ranges = self.ranges.iter().filter_map(|range| range.within(&elements));
            let ranges = ranges.map(|range| UpdateRange { start: range.start - start, ..range }).collect();
            let update = Update { ranges, ..self.clone() };
            let weights = region(Arena::Parameters, start);
            let gradients = region(Arena::Gradients, start);
            let other = || refuse("its state is that of another optimiser");
            PreparedUpdate::new(&update, weights, gradients, &states, clip).ok_or_else(other)
        };
        let parts = o.preparation.plan.updated_parts().into_iter().map(prepare);
        let updates = parts.collect::<Result<Vec<_>, DeviceError>>()?;
        let workspace = updates.iter().fold(Workspace::default(), |most, update| most.max(update.workspace()));
        Ok(kernel!(workspace, (c, step) => {
            updates.iter().for_each(|update| update.run(c, step.learning_rate, step.optimizer_step));
        }))
    }
}
