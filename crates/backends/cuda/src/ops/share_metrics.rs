//! What a shard tells all ranks with the last bucket of gradients.

use enmasse_graph::ops::ShareMetrics;

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::kernels::metrics::share_metrics;

impl OnCuda for ShareMetrics {
    fn lower(&self, o: &Operands, _: &mut Lowering) -> Lowered {
        let numbers: Vec<_> = (1..o.node.inputs.len()).map(|index| o.input(index)).collect();
        let shard = o.places.schedule.shards[o.local].shard;
        Ok(computed(share_metrics(shard, self.shards, o.input(0), &numbers, o.output(0))))
    }
}
