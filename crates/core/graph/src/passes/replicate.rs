//! DataParallel (`--strategy dp`), as PyTorch's `nn.DataParallel`: the first rank gets the sum of
//! all gradients once backward has ended, is the only one that updates, and copies the result to
//! the others. Nothing overlaps with backward.
//!
//! Running statistics are those of shard 0, from a plan that does not average them.
//!
//! All ranks agree on one plan. What only the first rank does in it, and the optimiser's state that
//! only it holds, is left out for the others by [`Plans::of_rank`].

use crate::ops::{AllReduceStart, AllReduceWait, ReduceStart, ReduceWait, Replicate};
use crate::{Arena, Bucket, Graph, Node, Op, Phase, Plan, Plans, Role, ValueId};

/// What sums gradients over shards, and where they are updated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Strategy {
    /// All ranks get the sums while backward runs, and each updates its own copy: PyTorch's `DistributedDataParallel`.
    #[default]
    Distributed,
    /// The first rank gets the sums after backward, updates, and copies the parameters to the others: PyTorch's `DataParallel`.
    /// Running statistics are those of shard 0.
    Replicated,
    /// Each of so many ranks gets the sums of a part while backward runs, keeps the optimiser's state of that part alone, updates it, and
    /// gets the other parameters: ZeRO's first stage.
    Partitioned {
        /// The number of ranks. For one there is nothing to divide.
        ranks: usize,
    },
}

/// Appends the sums to a graph that ends with backward: of all gradients for the first rank, and of the metrics for all ranks,
/// which must agree on how the step ends. `arena` is as in [`super::data_parallel()`].
pub(crate) fn collect(graph: &mut Graph, arena: &[(ValueId, usize, usize)], metrics: ValueId) -> Vec<Bucket> {
    let is_gradient = |id: ValueId| matches!(graph.value(id).role, Role::Gradient { .. });
    let of = |is: &dyn Fn(ValueId) -> bool| arena.iter().copied().filter(|&(id, ..)| is(id)).collect();
    let members: [Vec<(ValueId, usize, usize)>; 2] = [of(&is_gradient), of(&|id| id == metrics)];
    let bucket = |members: &Vec<(ValueId, usize, usize)>| {
        let (&(id, first, _), &(_, last, bytes)) = (members.first()?, members.last()?);
        let dtype = graph.value(id).dtype;
        Some(Bucket { dtype, sent: dtype, start: first / dtype.size(), len: (last + bytes - first) / dtype.size() })
    };
    let buckets = members.iter().filter_map(bucket).collect();
    let ops = [
        (Phase::Backward, [Op::from(ReduceStart { bucket: 0 }), AllReduceStart { bucket: 1 }.into()]),
        (Phase::Reduce, [ReduceWait { bucket: 0 }.into(), AllReduceWait { bucket: 1 }.into()]),
    ];
    for (phase, ops) in ops {
        for (bucket, (op, members)) in ops.into_iter().zip(&members).enumerate() {
            let inputs: Vec<ValueId> = members.iter().map(|&(id, ..)| id).collect();
            graph.nodes.push(Node::new(op, inputs, [], phase, format!("bucket {bucket}")));
        }
    }
    buckets
}

/// Appends the copies from the first rank to the others: of what it computed from the gradients, and of what it updated.
pub(crate) fn replicate(graph: &mut Graph, of_gradients: Vec<ValueId>, parameters: Vec<ValueId>) {
    let running = graph.nodes.iter().filter(|node| matches!(node.op, Op::RunningUpdate(_)));
    let running = running.flat_map(|node| node.op.changes(node.inputs.len()).map(|index| node.inputs[index]));
    let updated = parameters.into_iter().chain(running).collect();
    for (inputs, phase) in [(of_gradients, Phase::Reduce), (updated, Phase::Update)] {
        if !inputs.is_empty() {
            graph.nodes.push(Node::new(Replicate, inputs, [], phase, "step"));
        }
    }
}

impl Plan {
    /// Whether only the first rank updates, and copies the result to the others.
    pub fn is_replicated(&self) -> bool {
        self.instructions.iter().any(|node| matches!(node.op, Op::Replicate(_)))
    }
}

impl Plans {
    /// The part of the plans that a rank runs. It is all of them, unless only the first rank updates: then the others have neither
    /// the update nor the optimiser's state; or each rank a part: then a rank has its own.
    pub fn of_rank(mut self, rank: usize) -> Self {
        if self.train.as_ref().is_some_and(|train| train.partition.is_some()) {
            return self.of_part(rank);
        }
        let Some(train) = self.train.as_mut().filter(|train| rank > 0 && train.is_replicated()) else { return self };
        let is_of_first =
            |op: &Op| matches!(op, Op::GradientNorm(_) | Op::Unscale(_) | Op::Update(_) | Op::RunningUpdate(_));
        // These come last, so the numbers of instructions with a choice of algorithm stay.
        train.instructions.retain(|node| !is_of_first(&node.op));
        train.arenas.retain(|(arena, _)| !matches!(arena, Arena::Optimizer(_)));
        self.state.retain(|tensor| !matches!(tensor.slot.arena, Arena::Optimizer(_)));
        self
    }
}

#[cfg(test)]
mod tests {
    use crate::{Averaging, CompileOptions, Conv, Metric, Phase, Plans, Precision, Strategy, Tensor, compile};

    fn plans(change: impl Fn(CompileOptions) -> CompileOptions) -> Plans {
        let net = |x: Tensor| x.conv2d("conv", Conv::new(8, 3).no_bias()).batch_norm("bn").flatten().linear("fc", 10);
        let options =
            CompileOptions { shards: 2, strategy: Strategy::Replicated, ..CompileOptions::new("net", 2, 4, 10) };
        compile(&net, &change(options)).unwrap()
    }

    /// Names of the instructions from the last one of backward on.
    fn end(plans: &Plans) -> Vec<&'static str> {
        let train = plans.train.as_ref().unwrap();
        let sums = train.phase(Phase::Backward).iter().rev().take_while(|node| node.op.name().ends_with("start"));
        let first = train.instructions.partition_point(|node| node.phase <= Phase::Backward) - sums.count();
        train.instructions[first..].iter().map(|node| node.op.name()).collect()
    }

    #[test]
    fn only_the_first_rank_updates() {
        let check = |change: fn(CompileOptions) -> CompileOptions, rank: usize, expected: &str| {
            let found = plans(change).of_rank(rank);
            assert_eq!(end(&found).join(" "), expected, "rank {rank}");
        };
        let sums = "reduce_start all_reduce_start reduce_wait all_reduce_wait";
        check(|o| o, 0, &format!("{sums} check_finite update running_update replicate"));
        check(|o| o, 1, &format!("{sums} check_finite replicate"));
        let norm = |o| CompileOptions { metrics: vec![Metric::GradientNorm], average: Some(Averaging::Ema(0.5)), ..o };
        let rest = "check_finite update running_update replicate average";
        check(norm, 0, &format!("{sums} gradient_norm replicate {rest}"));
        check(norm, 1, &format!("{sums} replicate check_finite replicate average"));
        let scaled = |o| CompileOptions { precision: Precision::F16, ..o };
        check(scaled, 1, &format!("{sums} replicate check_finite replicate update_scale"));
        let single = |o| CompileOptions { shards: 1, ..o };
        check(single, 1, "check_finite update running_update");
    }

    #[test]
    fn buckets_are_all_gradients_and_the_metrics() {
        let train = plans(|o| o).train.unwrap();
        let [gradients, metrics] = train.buckets[..] else { panic!("{:?}", train.buckets) };
        assert_eq!((gradients.start, gradients.len), (0, train.trainable));
        let carried = train.metrics.unwrap();
        assert_eq!(metrics.bytes().start, train.slot(carried).offset);
        assert_eq!(metrics.len, train.shape(carried).elements().next_multiple_of(16));
    }

    #[test]
    fn statistics_of_all_shards_are_refused() {
        let net = |x: Tensor| x.batch_norm("bn").flatten().linear("fc", 10);
        let options = CompileOptions {
            sync_batch_norm: true,
            strategy: Strategy::Replicated,
            ..CompileOptions::new("net", 2, 4, 10)
        };
        let error = compile(&net, &options).unwrap_err().to_string();
        assert_eq!(error, "batch norm over all shards needs gradients that all ranks sum: leave out one of them");
    }
}
