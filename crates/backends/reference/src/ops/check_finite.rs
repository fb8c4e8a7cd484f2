//! The check of the losses.

use enmasse_device::{DeviceError, first_non_finite};
use enmasse_graph::ops::CheckFinite;

use super::{OnReference, StepContext};

impl OnReference for CheckFinite {
    fn run(&self, step: &mut StepContext) -> Result<(), DeviceError> {
        let metrics = step.shards[0].read(step.plan, step.node.inputs[0])?;
        match first_non_finite(metrics.iter().copied().take(step.plan.shards)) {
            Some((shard, loss)) => Err(DeviceError::NonFinite { shard, loss }),
            None => Ok(()),
        }
    }
}
