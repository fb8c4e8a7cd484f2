//! Sums over all shards of one bucket of the gradient arena.

use std::collections::HashMap;

use enmasse_device::DeviceError;
use enmasse_graph::ValueId;
use enmasse_graph::ops::{
    AllReduceStart, AllReduceWait, ReduceScatterStart, ReduceScatterWait, ReduceStart, ReduceWait,
};

use super::{OnReference, StepContext};
use crate::tree;

/// Buckets whose sums have started and have not been waited for: the values that belong to the collective, and their sums.
pub(crate) type InFlight = HashMap<usize, Vec<(ValueId, Vec<f64>)>>;

impl OnReference for AllReduceStart {
    fn run(&self, step: &mut StepContext) -> Result<(), DeviceError> {
        start(step, self.bucket)
    }
}

impl OnReference for AllReduceWait {
    fn run(&self, step: &mut StepContext) -> Result<(), DeviceError> {
        wait(step, self.bucket, |_, _| true)
    }
}

impl OnReference for ReduceStart {
    fn run(&self, step: &mut StepContext) -> Result<(), DeviceError> {
        start(step, self.bucket)
    }
}

impl OnReference for ReduceWait {
    /// Other ranks than the first could gather the sum, too, but must not use it.
    fn run(&self, step: &mut StepContext) -> Result<(), DeviceError> {
        wait(step, self.bucket, |step, _| step.exchange.hosting.rank() == 0)
    }
}

impl OnReference for ReduceScatterStart {
    fn run(&self, step: &mut StepContext) -> Result<(), DeviceError> {
        start(step, self.bucket)
    }
}

impl OnReference for ReduceScatterWait {
    /// Other ranks than the one that updates a parameter must not use its gradient.
    fn run(&self, step: &mut StepContext) -> Result<(), DeviceError> {
        wait(step, self.bucket, |step, id| step.plan.holds(id))
    }
}

fn start(step: &mut StepContext, bucket: usize) -> Result<(), DeviceError> {
    let mut sums = Vec::new();
    for &id in &step.node.inputs {
        let own = step.shards.iter_mut().map(|shard| shard.take(step.plan, id)).collect::<Result<_, _>>()?;
        sums.push((id, tree::sum(&step.exchange.all(own)?)));
    }
    step.in_flight.insert(bucket, sums);
    Ok(())
}

/// Ends the sum of a bucket, of which the shards get the values that are theirs.
fn wait(
    step: &mut StepContext,
    bucket: usize,
    is_ours: impl Fn(&StepContext, ValueId) -> bool,
) -> Result<(), DeviceError> {
    let sums = step.in_flight.remove(&bucket).ok_or_else(|| {
        DeviceError::Unsupported(format!("bucket {bucket} is waited for, but its sum was never started"))
    })?;
    for (id, sum) in sums {
        if !is_ours(step, id) {
            continue;
        }
        step.shards.iter_mut().for_each(|shard| shard.write(step.plan, id, sum.clone()));
    }
    Ok(())
}
