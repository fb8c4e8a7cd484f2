//! The optimiser's operands: regions of the arenas that its ranges index, after checking that every value is where they say.

use enmasse_device::DeviceError;
use enmasse_graph::{Arena, Plan, Slot, Update, ValueId};
use enmasse_tensor::DType;

use super::operand::Operand;
use crate::average::Averages;
use crate::norm::Norm;
use crate::optimizer::{Clip, PreparedUpdate};

impl Operand<'_> {
    /// Prepares an update. An error names the mismatch with the optimiser.
    pub(super) fn update(&self, update: &Update) -> Result<PreparedUpdate, DeviceError> {
        let refuse = |problem: &str| {
            let (layer, optimizer) = (&self.node.layer, update.optimizer);
            DeviceError::Unsupported(format!("layer {layer}: the cpu cannot run update {{{optimizer}}}: {problem}"))
        };
        let arity = || {
            let kept = update.optimizer.state_names().len();
            refuse(&format!("{} operands, for {kept} tensors of state per parameter", self.node.inputs.len()))
        };
        let operands = update.operands(&self.node.inputs).ok_or_else(arity)?;
        let plan = self.preparation.plan;
        let offset = |&id: &ValueId| plan.slot(id).offset;
        let lies = |ids: &[ValueId], arena: Arena| {
            let here = |id: &ValueId| plan.slot(*id).arena == arena && plan.value(*id).dtype == DType::F32;
            ids.iter().all(here) && ids.iter().map(offset).eq(operands.parameters.iter().map(offset))
        };
        let states = operands.state.iter().enumerate().all(|(slot, ids)| lies(ids, Arena::Optimizer(slot)));
        if !(lies(operands.parameters, Arena::Parameters) && lies(operands.gradients, Arena::Gradients) && states) {
            return Err(refuse("its operands lie at different offsets"));
        }
        let ends = operands.parameters.iter().map(|id| offset(id) / DType::F32.size() + plan.shape(*id).elements());
        let end = ends.max().unwrap_or(0);
        if update.ranges.iter().any(|range| range.end() > end) {
            return Err(refuse("a range ends beyond its operands"));
        }
        let region = |arena| self.preparation.range(arena, self.hosted, 0, end);
        let state: Vec<_> = (0..operands.state.len()).map(|slot| region(Arena::Optimizer(slot))).collect();
        let last = self.node.inputs.len() - 1;
        let clip = update.clip_norm.map(|limit| self.input(last).map(|norm| Clip { limit, norm })).transpose()?;
        let (weights, gradients) = (region(Arena::Parameters), region(Arena::Gradients));
        PreparedUpdate::new(update, weights, gradients, &state, clip).ok_or_else(arity)
    }

    /// Values and their averages.
    pub(super) fn averages(&self, decay: f32) -> Result<Averages, DeviceError> {
        let count = self.node.inputs.len() / 2;
        let regions = (0..count).map(|index| Ok([self.input(index)?, self.input(count + index)?]));
        Ok(Averages::new(regions.collect::<Result<_, DeviceError>>()?, decay))
    }

    /// The norm of all gradients, which are adjacent in the arena.
    pub(super) fn gradient_norm(&self) -> Result<Norm, DeviceError> {
        let plan = self.preparation.plan;
        let mut end = 0;
        for &id in &self.node.inputs {
            let slot = plan.slot(id);
            if slot != (Slot { arena: Arena::Gradients, offset: end }) || plan.value(id).dtype != DType::F32 {
                let (layer, op) = (&self.node.layer, self.node.op.name());
                let reason = format!("layer {layer}: the cpu runs {op} only over neighbours in the gradient arena");
                return Err(DeviceError::Unsupported(reason));
            }
            end = (slot.offset + plan.shape(id).elements() * DType::F32.size()).next_multiple_of(Plan::ALIGNMENT);
        }
        Ok(Norm::new(self.preparation.range(Arena::Gradients, 0, 0, end / DType::F32.size())))
    }
}
