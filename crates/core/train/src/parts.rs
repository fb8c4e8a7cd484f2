//! The optimiser's state of all ranks, of which each has a part (`--strategy zero1`): on its way into a checkpoint and out of one, a tensor
//! at a time. So checkpoints do not depend on the parts.

use std::sync::Arc;

use enmasse_comm::{Cause, Group};
use enmasse_device::Program;
use enmasse_graph::{Partition, Plans, StateTensor};

use crate::TrainError;
use crate::checkpoint::CheckpointFile;
use crate::weights::{fill, map_state};

/// Asks for no tensor, and ends [`send_state`].
const END: i64 = -1;

/// How the state is divided, if it is.
fn partition(plans: &Plans) -> Option<&Partition> {
    plans.train.as_ref()?.partition.as_ref().filter(|partition| partition.rank.is_some())
}

/// The tensors of the optimiser's state that other ranks have.
pub(crate) fn elsewhere(plans: &Plans) -> impl Iterator<Item = &StateTensor> {
    let rank = partition(plans).and_then(|partition| partition.rank);
    let state = partition(plans).into_iter().flat_map(|partition| &partition.state);
    state.filter(move |(_, owner)| Some(*owner) != rank).map(|(tensor, _)| tensor)
}

/// What other ranks have, on rank 0: they [`send_state`] until this is dropped.
pub(crate) struct StateOfOthers<'a> {
    group: &'a Group,
    state: Vec<(StateTensor, usize)>,
}

impl<'a> StateOfOthers<'a> {
    /// `None` if no other rank has anything.
    pub fn begin(program: &dyn Program, group: Option<&'a Group>) -> Option<Self> {
        let state = partition(program.plans())?.state.clone();
        Some(StateOfOthers { group: group?, state })
    }

    /// The optimiser's state of all ranks.
    pub fn all(&self) -> impl Iterator<Item = &StateTensor> {
        self.state.iter().map(|(tensor, _)| tensor)
    }

    /// A tensor of another rank, in stored order.
    pub fn read(&self, name: &str) -> Result<Vec<f32>, Arc<Cause>> {
        let Some(index) = self.state.iter().position(|(tensor, _)| tensor.name == name) else { return Ok(Vec::new()) };
        let (tensor, owner) = &self.state[index];
        self.group.broadcast(&mut [index as i64], 0)?;
        let mut values = vec![0.0; tensor.shape.elements()];
        self.group.broadcast(&mut values, *owner)?;
        Ok(values)
    }
}

impl Drop for StateOfOthers<'_> {
    /// If the group has failed, the others know.
    fn drop(&mut self) {
        let _ = self.group.broadcast(&mut [END], 0);
    }
}

/// Gives rank 0 the tensors that it asks for. All other ranks call it while rank 0 writes its checkpoints.
pub(crate) fn send_state(program: &mut dyn Program, group: Option<&Group>) -> Result<(), TrainError> {
    let (Some(group), Some(partition)) = (group, partition(program.plans())) else { return Ok(()) };
    let state = partition.state.clone();
    loop {
        let mut asked = [END];
        group.broadcast(&mut asked, 0)?;
        let Some((tensor, owner)) = usize::try_from(asked[0]).ok().and_then(|index| state.get(index)) else {
            return Ok(());
        };
        let mut values = vec![0.0; tensor.shape.elements()];
        if *owner == group.rank() {
            values = map_state(program, &|own| own.name == tensor.name, &|_, values| values.to_vec())?.concat();
        }
        group.broadcast(&mut values, *owner)?;
    }
}

/// Gives each rank its part of the state from the checkpoint that rank 0 has; zeros of what it does not have. All ranks call it.
pub(crate) fn deliver(
    group: &Group,
    program: &mut dyn Program,
    checkpoint: Option<&CheckpointFile>,
) -> Result<(), TrainError> {
    let state = partition(program.plans()).map_or(Vec::new(), |partition| partition.state.clone());
    for (tensor, owner) in state.iter().filter(|(_, owner)| *owner > 0) {
        let entry =
            checkpoint.and_then(|file| Some((file, file.entries().iter().position(|e| e.name == tensor.name)?)));
        let mut values = match entry {
            Some((file, index)) => file.read(index)?,
            None => vec![0.0; tensor.shape.elements()],
        };
        group.broadcast(&mut values, 0)?;
        if *owner == group.rank() {
            fill(program, &|own| (own.name == tensor.name).then_some(&values[..]))?;
        }
    }
    Ok(())
}
