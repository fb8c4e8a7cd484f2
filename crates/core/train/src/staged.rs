//! A rank's stage of a model as a program of the whole model: its state has the names and the shapes of the whole, of which this rank
//! holds a part. Rank 0 has [`Copies`] of the other stages' tensors.

use std::collections::HashMap;
use std::sync::Arc;

use enmasse_comm::Group;
use enmasse_device::{
    Device, DeviceError, Fill, Program, RankStage, Read, StepInputs, StepMetrics, Ticket, Which, find_state,
};
use enmasse_graph::{Mode, Phase, Plans, StateTensor};

use crate::copies::{Copies, read_own, stored};
use crate::weights::map_state;

/// A program of one stage, under the plans of the whole model.
pub(crate) struct StagedProgram {
    own: Box<dyn Program>,
    whole: Plans,
    place: RankStage,
    group: Group,
    /// The stage that holds each state tensor.
    owners: Arc<HashMap<String, usize>>,
    /// Of what other stages hold.
    copies: Copies,
}

impl StagedProgram {
    /// The program of this rank of `group`, with the plans of the whole model and those of each stage.
    pub fn new(
        device: &dyn Device,
        whole: Plans,
        mut stages: Vec<Plans>,
        place: RankStage,
        group: Group,
    ) -> Result<Self, DeviceError> {
        let owned = stages
            .iter()
            .enumerate()
            .flat_map(|(stage, plans)| plans.state.iter().map(move |tensor| (tensor.name.clone(), stage)));
        let owners = Arc::new(owned.collect());
        let own = device.compile(stages.swap_remove(place.stage), Some(group.clone()))?;
        let copies = Copies::new(&group, "belongs to another stage of the model");
        Ok(StagedProgram { own, whole, place, group, owners, copies })
    }

    /// The tensors of other stages that are chosen, by number.
    fn others(&self, which: &Which) -> Vec<(usize, StateTensor)> {
        let state = self.whole.state.iter().enumerate();
        let chosen = state.filter(|(_, tensor)| !self.holds(tensor) && which(tensor));
        chosen.map(|(number, tensor)| (number, tensor.clone())).collect()
    }
}

impl Program for StagedProgram {
    fn plans(&self) -> &Plans {
        &self.whole
    }

    fn load(&mut self, name: &str, values: &[f64]) -> Result<(), DeviceError> {
        let tensor = find_state(&self.whole, name, values.len())?;
        if self.holds(tensor) {
            return self.own.load(name, values);
        }
        if self.copies.are_kept() {
            self.copies.insert(name, stored(tensor, values));
        }
        Ok(())
    }

    fn store(&mut self, name: &str) -> Result<Vec<f64>, DeviceError> {
        match self.whole.find(name).filter(|tensor| !self.holds(tensor)) {
            Some(tensor) => self.copies.store(tensor),
            None => self.own.store(name),
        }
    }

    fn fill_state(&mut self, which: &Which, fill: &Fill) -> Result<(), DeviceError> {
        self.own.fill_state(which, fill)?;
        let others = if self.copies.are_kept() { self.others(which) } else { Vec::new() };
        for (_, tensor) in others {
            let mut values = self.copies.take(&tensor.name);
            values.resize(tensor.shape.elements(), 0.0);
            fill(&tensor, 0, &mut values);
            self.copies.insert(&tensor.name, values);
        }
        Ok(())
    }

    /// Of other stages what this rank has copies of. On rank 0 the others are an error.
    fn read_state(&mut self, which: &Which, read: &Read) -> Result<(), DeviceError> {
        read_own(self.own.as_mut(), &self.whole, which, read)?;
        self.others(which).iter().try_for_each(|(number, tensor)| self.copies.read(*number, tensor, read))
    }

    fn holds(&self, tensor: &StateTensor) -> bool {
        self.owners.get(&tensor.name) == Some(&self.place.stage)
    }

    fn gives_outputs(&self) -> bool {
        self.place.stage + 1 == self.place.stages
    }

    fn gather_state(&mut self, everywhere: bool) -> Result<(), DeviceError> {
        for tensor in &self.whole.state {
            let Some(&stage) = self.owners.get(&tensor.name) else { continue };
            if stage == 0 && !everywhere {
                continue;
            }
            let holds = stage == self.place.stage;
            let mut values = vec![0.0; tensor.shape.elements()];
            if holds {
                for (place, value) in values.iter_mut().zip(read_one(self.own.as_mut(), &tensor.name)?) {
                    *place = value;
                }
            }
            self.group.broadcast(&mut values, self.place.first_rank(stage))?;
            if !holds && (everywhere || self.copies.are_kept()) {
                self.copies.insert(&tensor.name, values);
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
        Err(DeviceError::Unsupported("a model in stages cannot continue on other ranks: start them again".into()))
    }
}

/// The values of one state tensor in stored order.
fn read_one(program: &mut dyn Program, name: &str) -> Result<Vec<f32>, DeviceError> {
    let values = map_state(program, &|tensor| tensor.name == name, &|_, values| values.to_vec())?;
    Ok(values.concat())
}
