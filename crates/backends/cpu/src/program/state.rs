//! The state of a whole model, set and read in place, by all threads of the program.

use enmasse_device::{Fill, Read, Which};
use enmasse_graph::StateTensor;

use super::CpuProgram;
use crate::region::Region;

impl CpuProgram {
    /// See [`enmasse_device::Program::fill_state`].
    pub(super) fn fill_all(&mut self, which: &Which, fill: &Fill) {
        /// Elements per task: few compared with a model, and a tenth of a millisecond of work.
        const PIECE: usize = 1 << 16;
        let chosen = self.chosen(which);
        let pieces: Vec<(usize, usize)> = (chosen.iter().enumerate())
            .flat_map(|(tensor, (_, region))| (0..region.len()).step_by(PIECE).map(move |first| (tensor, first)))
            .collect();
        let state = &self.plans.state;
        self.bound.pool().run(pieces.len(), |task, _| {
            let (tensor, first) = pieces[task];
            let (number, region) = chosen[tensor];
            // SAFETY: the slot lies in its arena, pieces do not overlap, and no step runs.
            let values = unsafe { region.slice_mut(first, PIECE.min(region.len() - first)) };
            fill(&state[number], first, values);
        });
    }

    /// See [`enmasse_device::Program::read_state`].
    pub(super) fn read_all(&mut self, which: &Which, read: &Read) {
        let chosen = self.chosen(which);
        let state = &self.plans.state;
        self.bound.pool().run(chosen.len(), |task, _| {
            let (number, region) = chosen[task];
            // SAFETY: the slot lies in its arena, and no step runs.
            read(number, &state[number], unsafe { region.slice(0, region.len()) });
        });
    }

    /// The memory of a state tensor.
    pub(super) fn floats(&self, tensor: &StateTensor) -> Region<f32> {
        let arena = self.state.iter().find(|(arena, _)| *arena == tensor.slot.arena);
        let start = arena.map_or(std::ptr::null_mut(), |(_, buffer)| buffer.as_ptr());
        Region::new(start.wrapping_add(tensor.slot.offset).cast(), tensor.shape.elements())
    }

    /// The chosen state tensors, by number, and their memory.
    fn chosen(&self, which: &Which) -> Vec<(usize, Region<f32>)> {
        let state = self.plans.state.iter().enumerate();
        state.filter(|(_, tensor)| which(tensor)).map(|(number, tensor)| (number, self.floats(tensor))).collect()
    }
}
