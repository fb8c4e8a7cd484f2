//! Copies of what only the first rank has computed.

use enmasse_device::DeviceError;
use enmasse_graph::ops::Replicate;

use super::{OnReference, StepContext};

impl OnReference for Replicate {
    fn run(&self, step: &mut StepContext) -> Result<(), DeviceError> {
        let mut values = Vec::new();
        for &id in &step.node.inputs {
            let mut value = match step.exchange.hosting.rank() {
                0 => step.shards[0].read(step.plan, id)?.to_vec(),
                _ => vec![0.0; step.plan.shape(id).elements()],
            };
            if let Some(group) = &step.exchange.groups.replicas {
                group.broadcast(&mut value, 0)?;
            }
            values.push(value);
        }
        step.scatter(&values)
    }
}
