//! Data parallelism: gradients are summed over shards in buckets. The sum of a bucket starts once the bucket is complete.

use enmasse_tensor::DType;

use crate::ops::{AllReduceStart, AllReduceWait, ReduceScatterStart, ReduceScatterWait, RunningShare};
use crate::{Bucket, Graph, Node, Op, Phase, Role, ValueId};

/// Sizes of buckets in bytes: a bucket is closed once it has reached its size. The first one is smaller, so that
/// communication starts early, as in PyTorch's DDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketSizes {
    /// Size of the first bucket.
    pub first: usize,
    /// Size of the other buckets.
    pub other: usize,
}

impl Default for BucketSizes {
    fn default() -> Self {
        BucketSizes { first: 1 << 20, other: 25 << 20 }
    }
}

/// What becomes of the sums of gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientSums {
    /// All ranks get them.
    All,
    /// Each rank gets those of its part.
    Parts,
    /// All ranks get them, and their values cross between nodes in this type.
    Compressed(DType),
}

/// Divides the gradient arena into buckets and inserts the collectives.
///
/// `arena` lists its values in order as `(value, first byte, bytes)`: first gradients, then carried values, which join the
/// last bucket. A bucket holds values of one type. Its sum starts after the last node of the forward, loss or backward phase
/// that uses one of its values, and the reduce phase waits for it.
///
/// Unless all ranks get the exact `sums` of gradients, carried values have buckets of their own, whose sums they get.
pub fn data_parallel(
    graph: &mut Graph,
    arena: &[(ValueId, usize, usize)],
    shards: usize,
    sizes: BucketSizes,
    sums: GradientSums,
) -> Vec<Bucket> {
    if shards == 1 {
        return Vec::new();
    }
    for node in &mut graph.nodes {
        if let Op::RunningShare(RunningShare { shards: all, .. }) = &mut node.op {
            *all = shards;
        }
    }
    let mut buckets: Vec<Bucket> = Vec::new();
    let mut members: Vec<Vec<ValueId>> = Vec::new();
    let gets_part = sums == GradientSums::Parts;
    let (mut open, mut of_gradients) = (false, 0);
    for &(id, first, bytes) in arena {
        let carried = graph.value(id).role == Role::Carried;
        let dtype = graph.value(id).dtype;
        let (start, len) = (first / dtype.size(), bytes / dtype.size());
        let is_apart = carried && sums != GradientSums::All && buckets.len() == of_gradients;
        if buckets.last().is_none_or(|bucket| bucket.dtype != dtype || (!open && !carried)) || is_apart {
            let sent = match sums {
                GradientSums::Compressed(to) if !carried => to,
                _ => dtype,
            };
            buckets.push(Bucket { dtype, sent, start, len: 0 });
            of_gradients += usize::from(!carried);
            members.push(Vec::new());
        }
        let index = buckets.len() - 1;
        members[index].push(id);
        buckets[index].len = start + len - buckets[index].start;
        let limit = if index == 0 { sizes.first } else { sizes.other };
        open = buckets[index].bytes().len() < limit;
    }
    // No sum starts before the backward phase, because phases ascend.
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
    let collective =
        |op: Op, bucket: usize, phase| Node::new(op, members[bucket].clone(), [], phase, format!("bucket {bucket}"));
    let start = |bucket: usize| -> Op {
        match gets_part && bucket < of_gradients {
            true => ReduceScatterStart { bucket }.into(),
            false => AllReduceStart { bucket }.into(),
        }
    };
    // Sums start in the order of the buckets, even if the buckets become complete in another order.
    let mut next = 0;
    let nodes = std::mem::take(&mut graph.nodes);
    for (index, node) in nodes.into_iter().enumerate() {
        graph.nodes.push(node);
        while next < buckets.len() && ready[..=next].iter().all(|&at| at <= index) {
            graph.nodes.push(collective(start(next), next, Phase::Backward));
            next += 1;
        }
    }
    for bucket in 0..buckets.len() {
        let op = match gets_part && bucket < of_gradients {
            true => ReduceScatterWait { bucket }.into(),
            false => AllReduceWait { bucket }.into(),
        };
        graph.nodes.push(collective(op, bucket, Phase::Reduce));
    }
    buckets
}
