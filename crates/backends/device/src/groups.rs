//! The groups of a program, which follow from how its plans are cut.

use std::sync::Arc;

use enmasse_comm::{Cause, Group};
use enmasse_graph::Plans;

use crate::{DeviceError, RankStage, StageLinks, TensorRank};

/// The groups of a program: the ranks that compute the same as it, each for shards of its own, and those that have other parts of the
/// model.
#[derive(Debug, Default)]
pub struct ProgramGroups {
    /// Those with the same instructions and the same part of each tensor, over which gradients are summed.
    pub replicas: Option<Group>,
    /// The other stages, of a model in stages.
    pub links: Option<StageLinks>,
    /// Those that have a part of each cut layer, in the order of the parts.
    parts: Option<Group>,
}

impl ProgramGroups {
    /// The groups of a program of these plans, whose ranks are `group`. All of its ranks call it.
    ///
    /// # Errors
    /// The group fails, or has another number of ranks than the plans need, or the plans are those of another rank's stage.
    pub fn new(plans: &Plans, group: Option<Group>) -> Result<Self, DeviceError> {
        if let Some(cut) = &plans.evaluate.tensor_parallel {
            let group = group.unwrap_or_else(Group::single);
            let place = TensorRank::new(group.rank(), group.world_size(), cut.ranks)?;
            let (replicas, parts) = (place.replicas_of(&group)?, place.parts_of(&group)?);
            return Ok(ProgramGroups { replicas: Some(replicas), links: None, parts: Some(parts) });
        }
        let Some(stage) = &plans.evaluate.stage else {
            return Ok(ProgramGroups { replicas: group, ..ProgramGroups::default() });
        };
        let group = group.unwrap_or_else(Group::single);
        let place = RankStage::new(group.rank(), group.world_size(), stage.count)?;
        if place.stage != stage.index {
            let reason =
                format!("rank {} is stage {}, and has the plans of stage {}", group.rank(), place.stage, stage.index);
            return Err(DeviceError::Unsupported(reason));
        }
        let (replicas, all) = (place.replicas_of(&group)?, place.stages_of(&group)?);
        Ok(ProgramGroups { replicas: Some(replicas), links: Some(StageLinks::new(all)?), parts: None })
    }

    /// Whether all ranks of the job are there.
    ///
    /// # Errors
    /// The cause, once a rank has failed.
    pub fn check(&self) -> Result<(), Arc<Cause>> {
        self.replicas.iter().try_for_each(Group::check)
    }

    /// The connections to the other stages, which an instruction of a stage needs.
    ///
    /// # Errors
    /// The plan is that of a whole model.
    pub fn links(&self) -> Result<&StageLinks, DeviceError> {
        let none = || DeviceError::Unsupported("this plan is a whole model, and has no stage beside it".into());
        self.links.as_ref().ok_or_else(none)
    }

    /// The ranks that have a part of each cut layer, in the order of the parts, which an instruction of such a layer needs.
    ///
    /// # Errors
    /// The plan has whole layers.
    pub fn parts(&self) -> Result<&Group, DeviceError> {
        let none =
            || DeviceError::Unsupported("this plan has whole layers, and no rank with another part of one".into());
        self.parts.as_ref().ok_or_else(none)
    }
}
