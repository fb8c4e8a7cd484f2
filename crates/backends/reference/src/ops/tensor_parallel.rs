//! What ranks exchange that have a part of each cut layer. The shards of a rank exchange one after another.

use enmasse_device::DeviceError;
use enmasse_graph::ops::{CopyToRanks, SumOverRanks, SumRequests};

use super::{OnReference, StepContext};

each_shard!(CopyToRanks, |_, _, [x]| vec![x.to_vec()]);

impl OnReference for SumOverRanks {
    fn run(&self, step: &mut StepContext) -> Result<(), DeviceError> {
        let parts = step.exchange.groups.parts()?;
        step.each_shard(|call, [x]| {
            let mut sum = x.to_vec();
            parts.all_reduce(&mut sum)?;
            if let Some(bias) = call.rest.first() {
                sum.chunks_mut(bias.len()).for_each(|row| row.iter_mut().zip(*bias).for_each(|(y, bias)| *y += bias));
            }
            Ok(vec![sum])
        })
    }
}

impl OnReference for SumRequests {
    fn run(&self, step: &mut StepContext) -> Result<(), DeviceError> {
        let mut metrics = step.shards[0].read(step.plan, step.node.inputs[0])?.to_vec();
        let requests = metrics.len() - 2;
        step.exchange.groups.parts()?.all_reduce(&mut metrics[requests..])?;
        step.scatter(&[metrics])
    }
}
