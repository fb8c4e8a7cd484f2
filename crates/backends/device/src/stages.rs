//! The ranks of a model in stages: which stage and which replica of it a rank is, and the groups and connections that follow.
//!
//! The replicas of a stage are adjacent ranks, so that the sums of gradients stay on a node where they can, and activations travel
//! between nodes.

use enmasse_comm::{Group, Pair};

use crate::DeviceError;

/// A rank's place in a model of several stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankStage {
    /// Its stage.
    pub stage: usize,
    /// The number of stages.
    pub stages: usize,
    /// Its number among the ranks that compute this stage, each for micro-batches of its own.
    pub replica: usize,
    /// The number of ranks that compute each stage.
    pub replicas: usize,
}

impl RankStage {
    /// The place of `rank` of a number of ranks.
    ///
    /// # Errors
    /// The number is no multiple of the stages.
    pub fn new(rank: usize, ranks: usize, stages: usize) -> Result<Self, DeviceError> {
        if stages == 0 || ranks == 0 || !ranks.is_multiple_of(stages) {
            let reason = format!("{stages} stages need {stages} ranks or a multiple of them, got {ranks}");
            return Err(DeviceError::Unsupported(reason));
        }
        let replicas = ranks / stages;
        Ok(RankStage { stage: rank / replicas, stages, replica: rank % replicas, replicas })
    }

    /// The first rank of a stage.
    pub fn first_rank(&self, stage: usize) -> usize {
        stage * self.replicas
    }

    /// The group of the ranks with this rank's stage. All ranks of `group` call it.
    ///
    /// # Errors
    /// The group fails.
    pub fn replicas_of(&self, group: &Group) -> Result<Group, DeviceError> {
        part(group, self.stage)
    }

    /// The group of one rank of each stage, in their order, with this rank's replica. All ranks of `group` call it.
    ///
    /// # Errors
    /// The group fails.
    pub fn stages_of(&self, group: &Group) -> Result<Group, DeviceError> {
        part(group, self.replica)
    }
}

/// This rank's part of a group that is divided by colour.
pub(crate) fn part(group: &Group, colour: usize) -> Result<Group, DeviceError> {
    let part = group.split(Some(colour as u32), group.rank() as i64)?;
    part.ok_or_else(|| DeviceError::Unsupported("a rank has no part of a divided group".into()))
}

/// The connections of two stages that follow each other.
#[derive(Debug)]
struct Neighbour {
    activations: Pair,
    gradients: Pair,
}

/// A stage's connections to the others, of one replica.
#[derive(Debug)]
pub struct StageLinks {
    all: Group,
    before: Option<Neighbour>,
    after: Option<Neighbour>,
}

impl StageLinks {
    /// Connects the stages that follow each other. All ranks of `all` call it.
    pub(crate) fn new(all: Group) -> Result<Self, DeviceError> {
        let (mut before, mut after) = (None, None);
        for stage in 1..all.world_size() {
            let pairs = [all.pair(stage - 1, stage)?, all.pair(stage - 1, stage)?];
            if let [Some(activations), Some(gradients)] = pairs {
                let place = if all.rank() == stage { &mut before } else { &mut after };
                *place = Some(Neighbour { activations, gradients });
            }
        }
        Ok(StageLinks { all, before, after })
    }

    /// One rank of each stage, in their order.
    pub fn all(&self) -> &Group {
        &self.all
    }

    /// The connection on which values for a stage leave.
    ///
    /// # Errors
    /// The stage neither follows this one nor precedes it.
    pub fn to(&self, stage: usize) -> Result<&Pair, DeviceError> {
        match stage > self.all.rank() {
            true => self.after.as_ref().map(|after| &after.activations),
            false => self.before.as_ref().map(|before| &before.gradients),
        }
        .ok_or_else(|| none_beside(stage))
    }

    /// The connection on which values of a stage arrive.
    ///
    /// # Errors
    /// As of [`StageLinks::to`].
    pub fn from(&self, stage: usize) -> Result<&Pair, DeviceError> {
        match stage < self.all.rank() {
            true => self.before.as_ref().map(|before| &before.activations),
            false => self.after.as_ref().map(|after| &after.gradients),
        }
        .ok_or_else(|| none_beside(stage))
    }
}

fn none_beside(stage: usize) -> DeviceError {
    DeviceError::Unsupported(format!("stage {stage} is not beside this one"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_of_a_stage_are_adjacent_ranks() {
        let check = |ranks: usize, stages: usize, expected: &[[usize; 2]]| {
            let places = (0..ranks).map(|rank| RankStage::new(rank, ranks, stages).unwrap());
            assert_eq!(places.map(|place| [place.stage, place.replica]).collect::<Vec<_>>(), expected);
        };
        check(2, 2, &[[0, 0], [1, 0]]);
        check(4, 2, &[[0, 0], [0, 1], [1, 0], [1, 1]]);
        check(3, 3, &[[0, 0], [1, 0], [2, 0]]);
        let error = RankStage::new(0, 3, 2).unwrap_err().to_string();
        assert_eq!(error, "2 stages need 2 ranks or a multiple of them, got 3");
    }
}
