//! SyncBatchNorm: computes statistics and the sums of the backward pass over the pixels of all
//! shards.
//!
//! Count, mean and sum of squared differences of each shard are combined by Chan's formula in the
//! fixed tree. Without this pass each shard normalises by its own statistics, and running
//! statistics become the mean over shards of each shard's update. (PyTorch's
//! DistributedDataParallel keeps rank 0's.)

use std::collections::{HashMap, HashSet};

use crate::ops::{BatchNormConv2d, BatchNormConv2dBackwardWeights, NormStatistics, SyncStatistics, SyncSum};
use crate::{Graph, GraphError, Node, Op, OperationLocation, Relation, ValueId};

/// Inserts the collectives of SyncBatchNorm for `shards` shards into a graph with its backward nodes. Gradients of weight and
/// bias remain those of this shard, since their bucket sums them.
pub fn sync_batch_norm(graph: &mut Graph, shards: usize) -> Result<(), GraphError> {
    if shards == 1 {
        return Ok(());
    }
    let over_all = |statistics: &mut NormStatistics| match statistics {
        NormStatistics::Batch { count } => *count *= shards,
        NormStatistics::Running => {}
    };
    let mut renamed: HashMap<ValueId, ValueId> = HashMap::new();
    // From a layer's own sums to the sums over all shards. Only the gradient of the layer's input uses the latter.
    let mut summed: HashMap<ValueId, ValueId> = HashMap::new();
    let nodes = std::mem::take(&mut graph.nodes);
    // A layer directly after the images needs no gradient of its input, so its sums are not exchanged.
    let wanted: HashSet<ValueId> = (nodes.iter())
        .filter(|node| matches!(node.op, Op::BatchNormBackward(_)))
        .flat_map(|node| node.inputs.iter().copied())
        .collect();
    for mut node in nodes {
        for input in &mut node.inputs {
            *input = *renamed.get(input).unwrap_or(input);
        }
        match &mut node.op {
            Op::RunningShare(share) => {
                share.count *= shards;
                share.shards = shards;
            }
            Op::BatchNormNormalize(norm)
            | Op::BatchNormConv2d(BatchNormConv2d { norm, .. })
            | Op::BatchNormConv2dBackwardWeights(BatchNormConv2dBackwardWeights(BatchNormConv2d { norm, .. })) => {
                over_all(&mut norm.statistics);
            }
            Op::BatchNormBackward(norm) => {
                over_all(&mut norm.statistics);
                for input in &mut node.inputs {
                    *input = *summed.get(input).unwrap_or(input);
                }
            }
            // The results of these are exchanged below.
            Op::BatchNormStatistics(_) | Op::BatchNormReduce(_) => {}
            op if op.is_of_batch() => {
                let place = OperationLocation { operation: op.name(), layer: node.layer, relation: Relation::After };
                let reason = "has no rule for statistics over all shards: leave out `sync_bn`".to_owned();
                return Err(GraphError::Attribute { place, reason });
            }
            _ => {}
        }
        let outputs = node.outputs.clone();
        let layer = node.layer.clone();
        let phase = node.phase;
        let pixels = |graph: &Graph, x: ValueId| graph.shape(x).elements() / graph.shape(x).last();
        let exchange: Option<(Op, Vec<ValueId>)> = match (&node.op, &outputs[..]) {
            (Op::BatchNormStatistics(_), _) => {
                Some((SyncStatistics { count: pixels(graph, node.inputs[0]) }.into(), outputs))
            }
            // A convolution with the statistics of its result.
            (Op::Conv2d(_) | Op::BatchNormConv2d(_), &[y, mean, variance]) => {
                Some((SyncStatistics { count: pixels(graph, y) }.into(), vec![mean, variance]))
            }
            (Op::BatchNormReduce(_), &[dbias, _]) if !is_running(graph, &node) && wanted.contains(&dbias) => {
                Some((SyncSum.into(), outputs))
            }
            _ => None,
        };
        graph.nodes.push(node);
        if let Some((op, own)) = exchange {
            let all: Vec<ValueId> =
                (own.iter()).map(|&id| graph.add_like(format!("{layer}.{}", op.name()), id)).collect();
            let table = if matches!(op, Op::SyncSum(_)) { &mut summed } else { &mut renamed };
            table.extend(own.iter().copied().zip(all.iter().copied()));
            graph.nodes.push(Node { op, inputs: own, outputs: all, phase, layer });
        }
    }
    Ok(())
}

/// Whether a reduction uses running statistics. Then the layer is frozen, and its sums are not exchanged.
fn is_running(graph: &Graph, node: &Node) -> bool {
    matches!(graph.value(node.inputs[2]).role, crate::Role::Buffer { .. })
}
