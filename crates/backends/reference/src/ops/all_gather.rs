//! Copies of what each rank has updated.

use enmasse_device::DeviceError;
use enmasse_graph::ops::AllGather;
use enmasse_tensor::DType;

use super::{OnReference, StepContext, unsupported};

impl OnReference for AllGather {
    fn run(&self, step: &mut StepContext) -> Result<(), DeviceError> {
        let partition = step.plan.partition.as_ref().ok_or_else(|| unsupported(step.node))?;
        let mut values = Vec::new();
        for &id in &step.node.inputs {
            let mut value = step.shards[0].read(step.plan, id)?.to_vec();
            if let Some(group) = &step.exchange.groups.replicas {
                group.broadcast(&mut value, partition.owner(step.plan.slot(id).offset / DType::F32.size()))?;
            }
            values.push(value);
        }
        step.scatter(&values)
    }
}
