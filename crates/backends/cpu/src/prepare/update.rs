//! The optimiser's operands: regions of the arenas that its ranges index, after checking that every value is where they say.

use enmasse_device::DeviceError;
use enmasse_graph::{Arena, Update};
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
        let (operands, end) = update.in_plan(self.preparation.plan, &self.node.inputs).map_err(|why| refuse(&why))?;
        let region = |arena| self.preparation.range(arena, self.local, 0, end);
        let state: Vec<_> = (0..operands.state.len()).map(|slot| region(Arena::Optimizer(slot))).collect();
        let last = self.node.inputs.len() - 1;
        let clip = update.clip_norm.map(|limit| self.input(last).map(|norm| Clip { limit, norm })).transpose()?;
        let (weights, gradients) = (region(Arena::Parameters), region(Arena::Gradients));
        let other = || refuse("its state is that of another optimiser");
        PreparedUpdate::new(update, weights, gradients, &state, clip).ok_or_else(other)
    }

    /// Values and their averages.
    pub(super) fn averages(&self, decay: f32) -> Result<Averages, DeviceError> {
        let count = self.node.inputs.len() / 2;
        let regions = (0..count).map(|index| Ok([self.input(index)?, self.input(count + index)?]));
        Ok(Averages::new(regions.collect::<Result<_, DeviceError>>()?, decay))
    }

    /// The norm of all gradients, which are adjacent in the arena.
    pub(super) fn gradient_norm(&self) -> Result<Norm, DeviceError> {
        let end = self.preparation.plan.adjacent_gradients(&self.node.inputs).ok_or_else(|| {
            let (layer, op) = (&self.node.layer, self.node.op.name());
            let reason = format!("layer {layer}: the cpu runs {op} only over neighbours in the gradient arena");
            DeviceError::Unsupported(reason)
        })?;
        Ok(Norm::new(self.preparation.range(Arena::Gradients, 0, 0, end / DType::F32.size())))
    }
}
