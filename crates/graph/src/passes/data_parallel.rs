//! Data parallelism: gradients are summed over shards in buckets, each started as soon as it is complete.

use crate::{Bucket, Graph, Node, Op, Phase, Role, ValueId};

/// How large buckets may become, in bytes. The first one is smaller, so that the network starts early (as PyTorch's DDP does).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketSizes {
    /// The first bucket.
    pub first: usize,
    /// The others.
    pub other: usize,
}

impl Default for BucketSizes {
    fn default() -> Self {
        BucketSizes { first: 1 << 20, other: 25 << 20 }
    }
}

/// Cuts the gradient arena into buckets and inserts the collectives.
///
/// `arena` are its values in order, gradients first, with `(first byte, bytes)`; carried ones come at its end and travel with the
/// last bucket. A bucket holds values of one type. It starts after the last node of the forward, loss or backward phase that
/// touches one of its values, and is waited for in the reduce phase.
pub fn data_parallel(
    graph: &mut Graph,
    arena: &[(ValueId, usize, usize)],
    shards: usize,
    sizes: BucketSizes,
) -> Vec<Bucket> {
    if shards == 1 {
        return Vec::new();
    }
    for node in &mut graph.nodes {
        if let Op::RunningShare { shards: all, .. } = &mut node.op {
            *all = shards;
        }
    }
    let mut buckets: Vec<Bucket> = Vec::new();
    let mut members: Vec<Vec<ValueId>> = Vec::new();
    let mut open = false;
    for &(id, first, bytes) in arena {
        let (carried, dtype) = (graph.value(id).role == Role::Carried, graph.value(id).dtype);
        let (start, len) = (first / dtype.size(), bytes / dtype.size());
        if buckets.last().is_none_or(|bucket| bucket.dtype != dtype || (!open && !carried)) {
            buckets.push(Bucket { dtype, start, len: 0 });
            members.push(Vec::new());
        }
        let index = buckets.len() - 1;
        members[index].push(id);
        buckets[index].len = start + len - buckets[index].start;
        let limit = if index == 0 { sizes.first } else { sizes.other };
        open = buckets[index].bytes().len() < limit;
    }
    // Never before backward begins: phases ascend.
    let begin = graph.nodes.partition_point(|node| node.phase < Phase::Backward);
    let ready: Vec<usize> = members
        .iter()
        .map(|members| {
            let touches = |node: &Node| {
                node.phase <= Phase::Backward && node.inputs.iter().chain(&node.outputs).any(|id| members.contains(id))
            };
            graph.nodes.iter().rposition(touches).unwrap_or(0).max(begin)
        })
        .collect();
    let collective = |op, bucket: usize, phase| Node {
        op,
        inputs: members[bucket].clone(),
        outputs: Vec::new(),
        phase,
        layer: format!("bucket {bucket}"),
    };
    // Sums start in the order of the buckets on every rank, whatever the order in which they become complete.
    let mut next = 0;
    let nodes = std::mem::take(&mut graph.nodes);
    for (index, node) in nodes.into_iter().enumerate() {
        graph.nodes.push(node);
        while next < buckets.len() && ready[..=next].iter().all(|&at| at <= index) {
            graph.nodes.push(collective(Op::AllReduceStart { bucket: next }, next, Phase::Backward));
            next += 1;
        }
    }
    for bucket in 0..buckets.len() {
        graph.nodes.push(collective(Op::AllReduceWait { bucket }, bucket, Phase::Reduce));
    }
    buckets
}
