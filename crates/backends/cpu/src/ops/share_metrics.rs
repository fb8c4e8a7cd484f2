//! What a shard tells all ranks, on the CPU.

use enmasse_graph::ops::ShareMetrics;

use super::{DeviceError, Element, Instruction, OnCpu, Operand, Workspace, kernel};
use crate::loss;

impl OnCpu for ShareMetrics {
    fn prepare<E: Element>(&self, o: &Operand) -> Result<Instruction, DeviceError> {
        let numbers = (1..o.node.inputs.len()).map(|index| o.input(index)).collect::<Result<Vec<_>, _>>()?;
        let (loss, metrics) = (o.input(0)?, o.output(0)?);
        let shard = o.preparation.schedule.shards[o.local].shard;
        Ok(
            kernel!(Workspace::default(), (_c, step) => loss::share(shard, loss, &numbers, [step.stop, step.save], metrics)),
        )
    }
}
