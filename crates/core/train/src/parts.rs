//! State of which ranks have different parts, on its way into a checkpoint and out of one, a tensor at a time: the optimiser's, of which
//! each rank has some tensors (`--strategy zero1`), so that checkpoints do not depend on the parts; and what each rank has lost by
//! compressing gradients (`--reduce-precision`), so that a resumed run has the bits of one that was not interrupted.

use std::sync::Arc;

use enmasse_comm::{Cause, Group};
use enmasse_device::Program;
use enmasse_graph::{Arena, Partition, Plans, RESIDUAL_PREFIX, StateTensor};

use crate::TrainError;
use crate::checkpoint::CheckpointFile;
use crate::weights::{fill, map_state};

/// Asks for no tensor, and ends [`send_state`].
const END: i64 = -1;

/// A tensor of one rank.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// As the rank has it.
    pub tensor: StateTensor,
    pub owner: usize,
    /// Its name in checkpoints.
    pub saved_as: String,
}

/// How the state is divided, if it is.
fn partition(plans: &Plans) -> Option<&Partition> {
    plans.train.as_ref()?.partition.as_ref().filter(|partition| partition.rank.is_some())
}

/// The tensors that differ between the ranks of a group, the same list on all of them.
fn parts(plans: &Plans, group: &Group) -> Vec<Part> {
    let divided = partition(plans).into_iter().flat_map(|partition| &partition.state);
    let divided = divided.map(|(tensor, owner)| (tensor, *owner, tensor.name.clone()));
    // Where all ranks share memory nothing is compressed, so that residuals are zero.
    let ranks = if group.shares_memory() { 0 } else { group.world_size() };
    let residuals = (0..ranks).flat_map(|rank| {
        let own = plans.state.iter().filter(|tensor| tensor.slot.arena == Arena::Residuals);
        own.filter_map(move |tensor| {
            let parameter = tensor.name.strip_prefix(RESIDUAL_PREFIX)?;
            Some((tensor, rank, format!("{RESIDUAL_PREFIX}{rank}.{parameter}")))
        })
    });
    let part =
        |(tensor, owner, saved_as): (&StateTensor, usize, String)| Part { tensor: tensor.clone(), owner, saved_as };
    divided.chain(residuals).map(part).collect()
}

/// The tensors of the optimiser's state that other ranks have.
pub(crate) fn elsewhere(plans: &Plans) -> impl Iterator<Item = &StateTensor> {
    let rank = partition(plans).and_then(|partition| partition.rank);
    let state = partition(plans).into_iter().flat_map(|partition| &partition.state);
    state.filter(move |(_, owner)| Some(*owner) != rank).map(|(tensor, _)| tensor)
}

/// What ranks have different parts of, on rank 0: the others [`send_state`] until this is dropped.
pub(crate) struct StateOfRanks<'a> {
    group: &'a Group,
    /// In the order of a rank that has all.
    pub parts: Vec<Part>,
}

impl<'a> StateOfRanks<'a> {
    /// `None` if all ranks have the same.
    pub fn begin(program: &dyn Program, group: Option<&'a Group>) -> Option<Self> {
        let group = group?;
        let parts = parts(program.plans(), group);
        // Not made for nothing, since its end tells the others.
        (!parts.is_empty()).then(|| StateOfRanks { group, parts })
    }

    /// A part of another rank, by its index, in stored order.
    pub fn read(&self, index: usize) -> Result<Vec<f32>, Arc<Cause>> {
        let Part { tensor, owner, .. } = &self.parts[index];
        self.group.broadcast(&mut [index as i64], 0)?;
        let mut values = vec![0.0; tensor.shape.elements()];
        self.group.broadcast(&mut values, *owner)?;
        Ok(values)
    }
}

impl Drop for StateOfRanks<'_> {
    /// If the group has failed, the others know.
    fn drop(&mut self) {
        let _ = self.group.broadcast(&mut [END], 0);
    }
}

/// Gives rank 0 the tensors that it asks for. All other ranks call it while rank 0 writes its checkpoints.
pub(crate) fn send_state(program: &mut dyn Program, group: Option<&Group>) -> Result<(), TrainError> {
    let Some(group) = group else { return Ok(()) };
    let parts = parts(program.plans(), group);
    if parts.is_empty() {
        return Ok(());
    }
    loop {
        let mut asked = [END];
        group.broadcast(&mut asked, 0)?;
        let Some(Part { tensor, owner, .. }) = usize::try_from(asked[0]).ok().and_then(|index| parts.get(index)) else {
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
    let fits = checkpoint.is_some_and(|file| saved_residuals(file) == residuals(program.plans(), group));
    for Part { tensor, owner, saved_as } in parts(program.plans(), group) {
        let is_residual = tensor.slot.arena == Arena::Residuals;
        // Rank 0 has read its part of the optimiser's state.
        if owner == 0 && !is_residual {
            continue;
        }
        let file = checkpoint.filter(|_| fits || !is_residual);
        let entry = file.and_then(|file| Some((file, file.entries().iter().position(|e| e.name == saved_as)?)));
        let mut values = match entry {
            Some((file, index)) => file.read(index)?,
            None => vec![0.0; tensor.shape.elements()],
        };
        if values.len() != tensor.shape.elements() {
            return Err(TrainError::Weights(format!("{saved_as} has {} values in the checkpoint", values.len())));
        }
        group.broadcast(&mut values, 0)?;
        if owner == group.rank() {
            fill(program, &|own| (own.name == tensor.name).then_some(&values[..]))?;
        }
    }
    Ok(())
}

/// The ranks of whose residuals a checkpoint has those.
fn saved_residuals(checkpoint: &CheckpointFile) -> usize {
    let rank = |name: &str| name.strip_prefix(RESIDUAL_PREFIX)?.split_once('.')?.0.parse::<usize>().ok();
    checkpoint.entries().iter().filter_map(|entry| rank(&entry.name)).max().map_or(0, |last| last.saturating_add(1))
}

/// The ranks that have residuals.
fn residuals(plans: &Plans, group: &Group) -> usize {
    let has_some = plans.state.iter().any(|tensor| tensor.slot.arena == Arena::Residuals);
    if has_some && !group.shares_memory() { group.world_size() } else { 0 }
}

/// What a checkpoint has of residuals that does not fit this run, in which they begin at zero then: a line for people.
pub(crate) fn lost_residuals(plans: &Plans, group: Option<&Group>, checkpoint: &CheckpointFile) -> Option<String> {
    let saved = saved_residuals(checkpoint);
    let now = group.map_or(0, |group| residuals(plans, group));
    match (saved, now) {
        _ if saved == now => None,
        (0, _) => Some("what compressing gradients has lost is not in the checkpoint; it begins at 0".to_owned()),
        (_, 0) => Some(format!("what compressing gradients has lost on {saved} ranks is dropped")),
        _ => Some(format!("what compressing gradients has lost on {saved} ranks is dropped; on {now} it begins at 0")),
    }
}
