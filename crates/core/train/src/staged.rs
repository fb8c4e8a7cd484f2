//! A rank's stage of a model as a program of the whole model: its state has the names and the shapes of the whole, of which this rank
//! holds a part.
//!
//! Rank 0 writes the files of a run. Before it does, all ranks call [`Program::gather_state`], which leaves copies of the other stages'
//! tensors on rank 0, in memory of the machine, until the next step of training. What rank 0 reads from a file goes the other way: it
//! sets copies, and broadcasts them. So files do not depend on the cut.

use std::collections::HashMap;
use std::sync::Arc;

use enmasse_comm::Group;
use enmasse_device::{
    Device, DeviceError, Fill, Program, RankStage, Read, StepInputs, StepMetrics, Ticket, Which, find_state,
    from_torch, to_torch,
};
use enmasse_graph::{Mode, Phase, Plans, StateTensor};

/// A program of one stage, under the plans of the whole model.
pub(crate) struct StagedProgram {
    own: Box<dyn Program>,
    whole: Plans,
    place: RankStage,
    group: Group,
    /// The stage that holds each state tensor.
    owners: Arc<HashMap<String, usize>>,
    /// Copies of what other stages hold, in stored order.
    copies: HashMap<String, Vec<f32>>,
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
        Ok(StagedProgram { own, whole, place, group, owners, copies: HashMap::new() })
    }

    fn keeps_copies(&self) -> bool {
        self.group.is_main()
    }

    /// The tensors of other stages that are chosen, by number.
    fn others(&self, which: &Which) -> Vec<(usize, StateTensor)> {
        let state = self.whole.state.iter().enumerate();
        let chosen = state.filter(|(_, tensor)| !self.holds(tensor) && which(tensor));
        chosen.map(|(number, tensor)| (number, tensor.clone())).collect()
    }
}

/// The error of a tensor that this rank has no copy of.
fn elsewhere(name: &str) -> DeviceError {
    DeviceError::Unsupported(format!("{name} belongs to another stage of the model, and has not been gathered"))
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
        if self.keeps_copies() {
            let mut stored = vec![0.0; values.len()];
            from_torch(values, &tensor.shape, tensor.layout, |to, value| stored[to] = value as f32);
            self.copies.insert(name.to_owned(), stored);
        }
        Ok(())
    }

    fn store(&mut self, name: &str) -> Result<Vec<f64>, DeviceError> {
        match self.whole.find(name).filter(|tensor| !self.holds(tensor)) {
            Some(tensor) => {
                let stored = self.copies.get(name).ok_or_else(|| elsewhere(name))?;
                Ok(to_torch(stored, &tensor.shape, tensor.layout))
            }
            None => self.own.store(name),
        }
    }

    fn fill_state(&mut self, which: &Which, fill: &Fill) -> Result<(), DeviceError> {
        self.own.fill_state(which, fill)?;
        let others = if self.keeps_copies() { self.others(which) } else { Vec::new() };
        for (_, tensor) in others {
            let mut values = self.copies.remove(&tensor.name).unwrap_or_default();
            values.resize(tensor.shape.elements(), 0.0);
            fill(&tensor, 0, &mut values);
            self.copies.insert(tensor.name, values);
        }
        Ok(())
    }

    /// Of other stages what this rank has copies of. On rank 0 the others are an error.
    fn read_state(&mut self, which: &Which, read: &Read) -> Result<(), DeviceError> {
        let whole: HashMap<&str, (usize, &StateTensor)> = self
            .whole
            .state
            .iter()
            .enumerate()
            .map(|(number, tensor)| (tensor.name.as_str(), (number, tensor)))
            .collect();
        self.own.read_state(which, &|_, tensor, values| {
            if let Some((number, tensor)) = whole.get(tensor.name.as_str()) {
                read(*number, tensor, values);
            }
        })?;
        for (number, tensor) in self.others(which) {
            match self.copies.get(&tensor.name) {
                Some(values) => read(number, &tensor, values),
                None if self.keeps_copies() => return Err(elsewhere(&tensor.name)),
                None => {}
            }
        }
        Ok(())
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
            if !holds && (everywhere || self.group.is_main()) {
                self.copies.insert(tensor.name.clone(), values);
            }
        }
        Ok(())
    }

    fn submit(&mut self, mode: Mode, phases: &[Phase], inputs: &StepInputs) -> Result<Ticket, DeviceError> {
        if mode == Mode::Train {
            // They are no longer true after it.
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
    let values = crate::weights::map_state(program, &|tensor| tensor.name == name, &|_, values| values.to_vec())?;
    Ok(values.concat())
}
