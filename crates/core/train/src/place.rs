//! A rank's place in a run: the part of the model that it has, and the replica of the model that it belongs to.

use enmasse_comm::Group;
use enmasse_device::{DeviceError, RankStage, TensorRank};

/// A rank's place among ranks that divide the model, or have all of it: one stage, or one part of each cut layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankPlace {
    /// Of a model in stages; a whole model is one stage.
    Stage(RankStage),
    /// Of a model whose layers are cut over ranks.
    Tensor(TensorRank),
}

impl RankPlace {
    /// Its replica, which has shards of its own.
    pub fn replica(&self) -> usize {
        match self {
            RankPlace::Stage(place) => place.replica,
            RankPlace::Tensor(place) => place.replica,
        }
    }

    /// The number of replicas.
    pub fn replicas(&self) -> usize {
        match self {
            RankPlace::Stage(place) => place.replicas,
            RankPlace::Tensor(place) => place.replicas,
        }
    }

    /// Ranks of a replica.
    pub fn parts(&self) -> usize {
        match self {
            RankPlace::Stage(place) => place.stages,
            RankPlace::Tensor(place) => place.parts,
        }
    }

    /// The replica of another rank.
    pub fn replica_of(&self, rank: usize) -> usize {
        match self {
            RankPlace::Stage(place) => rank % place.replicas,
            RankPlace::Tensor(place) => rank / place.parts,
        }
    }

    /// The first rank that computes the loss of a replica's samples.
    pub fn rank_of_loss(&self, replica: usize) -> usize {
        match self {
            RankPlace::Stage(place) => place.first_rank(place.stages - 1) + replica,
            RankPlace::Tensor(place) => place.first_rank(replica),
        }
    }

    /// The place of this rank's plans among those of [`Compilation::parts`](crate::Compilation::parts).
    pub(crate) fn plans(&self) -> usize {
        match self {
            RankPlace::Stage(place) => place.stage,
            RankPlace::Tensor(_) => 0,
        }
    }

    /// The group of the ranks with the same part of the model. All ranks of `group` call it.
    ///
    /// # Errors
    /// The group fails.
    pub(crate) fn replicas_in(&self, group: &Group) -> Result<Group, DeviceError> {
        match self {
            RankPlace::Stage(place) => place.replicas_of(group),
            RankPlace::Tensor(place) => place.replicas_of(group),
        }
    }
}
