//! What stages exchange. The micro-batches of a rank run together, one instruction after another, whatever the order of the plan's
//! schedule: it changes no bit.

use enmasse_device::DeviceError;
use enmasse_graph::ops::{ReceiveFrom, SendTo, SumStages, Zeros};

use super::{OnReference, StepContext};

impl OnReference for SendTo {
    fn run(&self, step: &mut StepContext) -> Result<(), DeviceError> {
        let pair = step.exchange.groups.links()?.to(self.stage)?;
        for shard in &*step.shards {
            pair.send(shard.read(step.plan, step.node.inputs[0])?)?;
        }
        Ok(())
    }
}

impl OnReference for ReceiveFrom {
    fn run(&self, step: &mut StepContext) -> Result<(), DeviceError> {
        let pair = step.exchange.groups.links()?.from(self.stage)?;
        let id = step.node.outputs[0];
        for shard in &mut *step.shards {
            let mut value = vec![0.0; step.plan.shape(id).elements()];
            pair.receive(&mut value)?;
            shard.write(step.plan, id, value);
        }
        Ok(())
    }
}

impl OnReference for Zeros {
    fn run(&self, step: &mut StepContext) -> Result<(), DeviceError> {
        let outputs = step.node.outputs.iter();
        let zeros: Vec<Vec<f64>> = outputs.map(|&id| vec![0.0; step.plan.shape(id).elements()]).collect();
        step.scatter(&zeros)
    }
}

impl OnReference for SumStages {
    fn run(&self, step: &mut StepContext) -> Result<(), DeviceError> {
        let mut value = step.shards[0].read(step.plan, step.node.inputs[0])?.to_vec();
        step.exchange.groups.links()?.all().all_reduce(&mut value)?;
        step.scatter(&[value])
    }
}
