//! A rank's parts of a model whose layers are cut over ranks, as a program of the whole model: its state has the names and the shapes of the
//! whole, and what is set in a cut tensor goes to the parts. Rank 0 has whole [`Copies`] of the cut tensors.

use enmasse_comm::Group;
use enmasse_device::{
    Device, DeviceError, Fill, Program, Read, StepInputs, StepMetrics, TensorRank, Ticket, Which, find_state,
};
use enmasse_graph::{Mode, ParameterCut, Phase, Plans, StateTensor, TensorParallel};

use crate::copies::{Copies, read_own, stored};
use crate::weights::map_state;

/// A program of one rank's parts, under the plans of the whole model.
pub(crate) struct TensorParallelProgram {
    own: Box<dyn Program>,
    whole: Plans,
    cut: TensorParallel,
    place: TensorRank,
    group: Group,
    /// Of cut tensors.
    copies: Copies,
}

impl TensorParallelProgram {
    /// The program of this rank of `group`, with the plans of the whole model and those of a rank's parts.
    pub fn new(
        device: &dyn Device,
        whole: Plans,
        plans: Plans,
        place: TensorRank,
        group: Group,
    ) -> Result<Self, DeviceError> {
        let cut = plans.evaluate.tensor_parallel.clone();
        let cut =
            cut.ok_or_else(|| DeviceError::Unsupported("the plans have no layer that is cut over ranks".into()))?;
        let own = device.compile(plans, Some(group.clone()))?;
        let copies = Copies::new(&group, "is cut over ranks");
        Ok(TensorParallelProgram { own, whole, cut, place, group, copies })
    }

    /// The cut tensors that are chosen, with their numbers in the whole model.
    fn chosen(&self, which: &Which) -> Vec<(usize, StateTensor, ParameterCut)> {
        let state = self.whole.state.iter().enumerate().filter(|(_, tensor)| which(tensor));
        state
            .filter_map(|(number, tensor)| Some((number, tensor.clone(), self.cut.cut_of(&tensor.name)?.clone())))
            .collect()
    }

    /// Sets this rank's part of a cut tensor from all of it, in stored order.
    fn set_part(&mut self, name: &str, cut: &ParameterCut, whole: &[f32]) -> Result<(), DeviceError> {
        let own: Vec<f32> = cut.runs(self.place.part, self.place.parts).flat_map(|run| &whole[run]).copied().collect();
        self.own.fill_state(&|tensor| tensor.name == name, &|_, first, values| {
            values.copy_from_slice(&own[first..first + values.len()]);
        })
    }
}

impl Program for TensorParallelProgram {
    fn plans(&self) -> &Plans {
        &self.whole
    }

    fn load(&mut self, name: &str, values: &[f64]) -> Result<(), DeviceError> {
        let tensor = find_state(&self.whole, name, values.len())?.clone();
        let Some(cut) = self.cut.cut_of(name).cloned() else { return self.own.load(name, values) };
        let stored = stored(&tensor, values);
        self.set_part(name, &cut, &stored)?;
        if self.copies.are_kept() {
            self.copies.insert(name, stored);
        }
        Ok(())
    }

    fn store(&mut self, name: &str) -> Result<Vec<f64>, DeviceError> {
        match self.whole.find(name).filter(|tensor| !self.holds(tensor)) {
            Some(tensor) => self.copies.store(tensor),
            None => self.own.store(name),
        }
    }

    /// Of a cut tensor each rank makes all elements, one tensor at a time, and keeps its part.
    fn fill_state(&mut self, which: &Which, fill: &Fill) -> Result<(), DeviceError> {
        let cut = &self.cut;
        self.own.fill_state(&|tensor| cut.cut_of(&tensor.name).is_none() && which(tensor), fill)?;
        for (_, tensor, cut) in self.chosen(which) {
            let mut values = vec![0.0; tensor.shape.elements()];
            fill(&tensor, 0, &mut values);
            self.set_part(&tensor.name, &cut, &values)?;
            if self.copies.are_kept() {
                self.copies.insert(&tensor.name, values);
            }
        }
        Ok(())
    }

    /// Of cut tensors what this rank has copies of. On rank 0 the others are an error.
    fn read_state(&mut self, which: &Which, read: &Read) -> Result<(), DeviceError> {
        let cut = &self.cut;
        let is_whole = |tensor: &StateTensor| cut.cut_of(&tensor.name).is_none() && which(tensor);
        read_own(self.own.as_mut(), &self.whole, &is_whole, read)?;
        self.chosen(which).iter().try_for_each(|(number, tensor, _)| self.copies.read(*number, tensor, read))
    }

    fn holds(&self, tensor: &StateTensor) -> bool {
        self.cut.cut_of(&tensor.name).is_none()
    }

    fn parts(&mut self) -> Option<&mut dyn Program> {
        Some(self.own.as_mut())
    }

    fn gives_outputs(&self) -> bool {
        self.place.part == 0
    }

    fn gather_state(&mut self, everywhere: bool) -> Result<(), DeviceError> {
        for (_, tensor, cut) in self.chosen(&|_| true) {
            let is_own = |own: &StateTensor| own.name == tensor.name;
            let own = map_state(self.own.as_mut(), &is_own, &|_, values| values.to_vec())?.concat();
            let keeps = everywhere || self.copies.are_kept();
            let mut whole = vec![0.0; if keeps { tensor.shape.elements() } else { 0 }];
            // The ranks of the first replica are the first ranks.
            for part in 0..self.place.parts {
                let mut values = own.clone();
                self.group.broadcast(&mut values, part)?;
                if keeps {
                    let mut rest = values.as_slice();
                    for run in cut.runs(part, self.place.parts) {
                        let (now, later) = rest.split_at(run.len());
                        whole[run].copy_from_slice(now);
                        rest = later;
                    }
                }
            }
            if keeps {
                self.copies.insert(&tensor.name, whole);
            }
        }
        Ok(())
    }

    fn submit(&mut self, mode: Mode, phases: &[Phase], inputs: &StepInputs) -> Result<Ticket, DeviceError> {
        if mode == Mode::Train {
            self.copies.clear();
        }
        self.own.submit(mode, phases, inputs)
    }

    fn metrics(&mut self, ticket: Ticket) -> Result<StepMetrics, DeviceError> {
        self.own.metrics(ticket)
    }

    fn rejoin(&mut self, _: Plans, _: Option<Group>) -> Result<(), DeviceError> {
        let reason = "a model whose layers are cut over ranks cannot continue on other ranks: start them again";
        Err(DeviceError::Unsupported(reason.into()))
    }
}
