//! ZeRO's first stage (`--strategy zero1`), as DeepSpeed's and PyTorch's `ZeroRedundancyOptimizer`: each rank keeps the optimiser's state
//! of a part of the parameters, updates that part, and gets the others from the ranks that have them.
//!
//! Each bucket of gradients is cut between tensors. A reduce-scatter leaves each rank the sums of its part, and after the update an
//! all-gather copies the parameters, so that a step sends what an all-reduce would. All elements are added in the tree of the
//! all-reduce, and no tensor is partition, so that what needs its norm has it: the weights have the bits of ranks that all update.
//!
//! All ranks agree on one plan with the parts of all. [`Plans::of_rank`] leaves a rank its own.
//!
//! Source: S. Rajbhandari, J. Rasley, O. Ruwase, Y. He, "ZeRO: memory optimizations toward training trillion parameter models", 2020.

use std::ops::Range;

use enmasse_tensor::DType;

use crate::ops::AllGather;
use crate::{Arena, Bucket, Graph, Node, Op, Phase, Plan, Plans, Role, Slot, StateTensor, UpdateRange, ValueId};

/// How the optimiser's state, and the update, are divided among ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Partition {
    /// For each bucket of gradients its first element, then the end of each rank's part, in elements of the arenas of parameters and
    /// of gradients.
    pub borders: Vec<Vec<usize>>,
    /// The optimiser's state of all ranks, in the order of [`Plans::state`], each tensor with the rank that has it.
    pub state: Vec<(StateTensor, usize)>,
    /// The rank whose plan it is; `None` in the plan that all agree on.
    pub rank: Option<usize>,
}

/// A part of the parameters that a plan updates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdatedPart {
    /// Its elements in the arenas of parameters and of gradients.
    pub elements: Range<usize>,
    /// The element at which its state begins in the optimiser's arenas.
    pub state: usize,
}

impl Partition {
    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.borders.first().map_or(0, |borders| borders.len() - 1)
    }

    /// What a rank updates of a bucket.
    pub fn part(&self, bucket: usize, rank: usize) -> Range<usize> {
        self.borders[bucket][rank]..self.borders[bucket][rank + 1]
    }

    /// The rank that updates an element.
    pub fn owner(&self, element: usize) -> usize {
        let of_bucket = |borders: &Vec<usize>| borders[1..].iter().position(|&end| element < end);
        self.borders.iter().find_map(of_bucket).unwrap_or(0)
    }

    /// The parts that a rank updates, whose state lies without gaps.
    fn parts_of(&self, rank: usize) -> Vec<UpdatedPart> {
        let parts = (0..self.borders.len()).map(|bucket| self.part(bucket, rank)).filter(|part| !part.is_empty());
        let mut end = 0;
        let mut part = |elements: Range<usize>| {
            let state = end;
            end += elements.len();
            UpdatedPart { elements, state }
        };
        parts.map(&mut part).collect()
    }
}

/// Cuts each bucket of gradients between tensors, so that after it the largest part of all buckets so far is as small as can be. `arena`
/// is as in [`super::data_parallel()`].
pub(crate) fn partition(
    graph: &Graph,
    arena: &[(ValueId, usize, usize)],
    buckets: &[Bucket],
    ranks: usize,
) -> Partition {
    let size = DType::F32.size();
    let gradients = arena.iter().filter(|(id, ..)| matches!(graph.value(*id).role, Role::Gradient { .. }));
    let ends: Vec<usize> = gradients.map(|(_, first, bytes)| (first + bytes) / size).collect();
    let mut loads = vec![0; ranks];
    let of_bucket = |bucket: &Bucket| {
        let tensors =
            ends.partition_point(|&end| end <= bucket.start)..ends.partition_point(|&end| end <= bucket.end());
        let borders = divide(bucket.start, &ends[tensors], &loads);
        loads.iter_mut().zip(borders.windows(2)).for_each(|(load, part)| *load += part[1] - part[0]);
        borders
    };
    // Carried values come after the gradients, in buckets of their own.
    let gradients = buckets.iter().take_while(|bucket| ends.last().is_some_and(|&last| bucket.start < last));
    Partition { borders: gradients.map(of_bucket).collect(), state: Vec::new(), rank: None }
}

/// Divides tensors that lie one after another, from `start` to these ends, among ranks that have `loads` already.
fn divide(start: usize, ends: &[usize], loads: &[usize]) -> Vec<usize> {
    // The borders if no rank takes more than `most` altogether, and whether these are enough for all.
    let within = |most: usize| {
        let mut borders = vec![start];
        let mut end = start;
        for load in loads {
            let limit = end + most.saturating_sub(*load);
            end = ends[..ends.partition_point(|&end| end <= limit)].last().map_or(start, |&last| last.max(end));
            borders.push(end);
        }
        (borders, ends.last().is_none_or(|&last| end == last))
    };
    let all = loads.iter().sum::<usize>() + ends.last().map_or(0, |last| last - start);
    let (mut low, mut high) = (0, all);
    while low < high {
        let most = low.midpoint(high);
        if within(most).1 { high = most } else { low = most + 1 }
    }
    within(low).0
}

/// Appends the copies of each rank's part to the others.
pub(crate) fn gather(
    graph: &mut Graph,
    gradients: &[(ValueId, ValueId)],
    arena: &[(ValueId, usize, usize)],
    partition: &Partition,
) {
    let size = DType::F32.size();
    for (bucket, borders) in partition.borders.iter().enumerate() {
        let range = borders[0]..borders[borders.len() - 1];
        let is_inside = |&&(_, first, _): &&(ValueId, usize, usize)| range.contains(&(first / size));
        let of = |&(gradient, ..): &(ValueId, usize, usize)| gradients.iter().find(|(_, own)| *own == gradient);
        let inputs: Vec<ValueId> =
            arena.iter().filter(is_inside).filter_map(of).map(|&(parameter, _)| parameter).collect();
        graph.nodes.push(Node::new(AllGather { bucket }, inputs, [], Phase::Update, format!("bucket {bucket}")));
    }
}

impl Plan {
    /// The parts of the parameters that this plan updates. Without a cut all are one part.
    pub fn updated_parts(&self) -> Vec<UpdatedPart> {
        match self.partition.as_ref().and_then(|partition| Some((partition, partition.rank?))) {
            Some((partition, rank)) => partition.parts_of(rank),
            None => vec![UpdatedPart { elements: 0..self.trainable, state: 0 }],
        }
    }

    /// Whether this plan's rank has a value after the sums: not the gradients of what other ranks update.
    pub fn holds(&self, id: ValueId) -> bool {
        let element = self.slot(id).offset / DType::F32.size();
        let is_gradient = matches!(self.value(id).role, Role::Gradient { .. });
        !is_gradient || self.updated_parts().iter().any(|part| part.elements.contains(&element))
    }

    /// Whether it is the plan of one of the ranks over which the update is partition, which have the sums of a part of the gradients each.
    pub fn is_partitioned(&self) -> bool {
        self.partition.as_ref().is_some_and(|partition| partition.rank.is_some())
    }
}

impl Plans {
    /// Leaves a rank its part of the update, and of the optimiser's state.
    pub(super) fn of_part(mut self, rank: usize) -> Self {
        let Some(train) = &mut self.train else { return self };
        if let Some(partition) = &mut train.partition {
            partition.rank = Some(rank);
        }
        let parts = train.updated_parts();
        let size = DType::F32.size();
        let place = |offset: usize| {
            let part = parts.iter().find(|part| part.elements.contains(&(offset / size)))?;
            Some(offset - part.elements.start * size + part.state * size)
        };
        let of_state = |slot: Slot| match slot.arena {
            Arena::Optimizer(_) => place(slot.offset).map(|offset| Slot { offset, ..slot }),
            _ => Some(slot),
        };
        let own: Vec<bool> = (0..train.values.len()).map(|id| place(train.slots[id].offset).is_some()).collect();
        for node in &mut train.instructions {
            let Op::Update(update) = &mut node.op else { continue };
            // Of each list what lies in a part: the operands of a parameter have one offset in all of them.
            let lists = node.inputs.len() - update.others();
            let inputs = node.inputs.iter().enumerate().filter(|&(at, id)| at >= lists || own[id.0]);
            node.inputs = inputs.map(|(_, &id)| id).collect();
            let operands = update.operands(&node.inputs).map_or(&[][..], |operands| operands.parameters);
            let ends = operands.iter().map(|id| train.slots[id.0].offset / size + train.values[id.0].shape.elements());
            // The padding of the last tensor of a part belongs to nothing of the rank.
            let covered = parts.iter().map(|UpdatedPart { elements, .. }| {
                let end = ends.clone().filter(|end| elements.contains(&(end - 1))).max();
                elements.start..end.unwrap_or(elements.start)
            });
            let covered: Vec<Range<usize>> = covered.collect();
            let of_parts =
                |range: &UpdateRange| covered.iter().filter_map(|part| range.within(part)).collect::<Vec<_>>();
            update.ranges = update.ranges.iter().flat_map(of_parts).collect();
        }
        train.instructions.retain(|node| !matches!(&node.op, Op::Update(update) if update.ranges.is_empty()));
        train.slots = train.slots.iter().map(|&slot| of_state(slot).unwrap_or(slot)).collect();
        let bytes = parts.last().map_or(0, |part| (part.state + part.elements.len()) * size);
        for (arena, of_arena) in &mut train.arenas {
            if matches!(arena, Arena::Optimizer(_)) {
                *of_arena = bytes;
            }
        }
        train.arenas.retain(|&(_, bytes)| bytes > 0);
        self.state.retain_mut(|tensor| of_state(tensor.slot).map(|slot| tensor.slot = slot).is_some());
        self
    }
}

impl UpdateRange {
    /// The part of it that is in `elements`, if there is one.
    pub fn within(&self, elements: &Range<usize>) -> Option<UpdateRange> {
        let start = self.start.max(elements.start);
        let end = self.end().min(elements.end);
        (start < end).then(|| UpdateRange { start, len: end - start, ..*self })
    }
}

#[cfg(test)]
mod tests {
    use enmasse_tensor::RandomStream;

    use super::*;
    use crate::optimizers::{AdamW, Lars};
    use crate::{BucketSizes, CompileOptions, Conv, ParameterGroups, Strategy, Tensor, compile};

    fn plans(ranks: usize, change: impl Fn(CompileOptions) -> CompileOptions) -> Plans {
        let net = |x: Tensor| {
            let x = x.conv2d("conv", Conv::new(8, 3).no_bias()).batch_norm("bn").relu().flatten();
            x.linear("fc1", 30).relu().linear("fc2", 10)
        };
        let options = CompileOptions {
            shards: 4,
            strategy: Strategy::Partitioned { ranks },
            optimizer: AdamW::default().into(),
            buckets: BucketSizes { first: 64, other: 4096 },
            ..CompileOptions::new("net", 2, 4, 10)
        };
        compile(&net, &change(options)).unwrap()
    }

    /// Names of the instructions of the phases from reduce on, with their buckets.
    fn end(train: &Plan) -> String {
        let phases = [Phase::Reduce, Phase::Check, Phase::Update];
        let nodes = phases.iter().flat_map(|&phase| train.phase(phase));
        let name = |node: &Node| match &node.op {
            Op::AllGather(AllGather { bucket }) => format!("all_gather {bucket}"),
            other => other.name().to_owned(),
        };
        nodes.map(name).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_plan_names_the_parts_of_all_ranks() {
        let train = plans(2, |options| options).train.unwrap();
        let text = train.to_string();
        let expected = "bucket 0 gradients[0..304]: rank 0 0..304, rank 1 304..304\n\
                        bucket 1 gradients[304..1328]: rank 0 304..320, rank 1 320..1328\n\
                        bucket 2 gradients[1328..1568]: rank 0 1328..1568, rank 1 1568..1568\n\
                        bucket 3 gradients[1568..";
        assert!(text.contains(expected), "{text}");
        let waits = "reduce_scatter_wait reduce_scatter_wait reduce_scatter_wait all_reduce_wait";
        let update = "check_finite update all_gather 0 all_gather 1 all_gather 2 running_update";
        assert_eq!(end(&train), format!("{waits} {update}"));
        let [first, last] = [0, 3].map(|bucket| train.buckets[bucket]);
        assert_eq!((first.start, last.end() * 4), (0, train.arena_bytes(Arena::Gradients)));
        // What is computed from the bucket of all ranks is no part of what is partition.
        assert_eq!(train.partition.unwrap().borders.len(), 3);
    }

    #[test]
    fn one_rank_has_nothing_to_cut() {
        let change = |options| CompileOptions { strategy: Strategy::Distributed, ..options };
        assert_eq!(plans(1, |options| options), plans(1, change));
        let single = |options| CompileOptions { shards: 1, ..options };
        assert!(plans(2, single).train.unwrap().partition.is_none());
    }

    #[test]
    fn ranks_have_every_tensor_of_state_once_and_without_gaps() {
        for ranks in 1..=6 {
            let all = plans(ranks, |options| CompileOptions { shards: 6, ..options });
            let whole = all.arena_bytes(Arena::Optimizer(0));
            let optimizer = |plans: &Plans| {
                let state = plans.state.iter().filter(|tensor| matches!(tensor.slot.arena, Arena::Optimizer(_)));
                state.cloned().collect::<Vec<_>>()
            };
            let mut names = Vec::new();
            let mut bytes = 0;
            for rank in 0..ranks {
                let own = all.clone().of_rank(rank);
                let mut ends = [0; 2];
                for tensor in optimizer(&own) {
                    let Arena::Optimizer(slot) = tensor.slot.arena else { unreachable!() };
                    ends[slot] += tensor.shape.elements().next_multiple_of(16) * 4;
                    names.push(tensor.name);
                }
                assert_eq!(ends, [own.arena_bytes(Arena::Optimizer(0)); 2], "{rank} of {ranks}");
                bytes += ends[0];
                assert_eq!(own.evaluate, all.evaluate);
            }
            assert_eq!(bytes, whole);
            names.sort_unstable();
            let mut expected: Vec<String> = optimizer(&all).into_iter().map(|tensor| tensor.name).collect();
            expected.sort_unstable();
            assert_eq!(names, expected);
        }
    }

    #[test]
    fn a_rank_updates_the_ranges_of_its_part() {
        let all = plans(2, |options| options);
        let of = |rank: usize| {
            let train = all.clone().of_rank(rank).train.unwrap();
            let node = train.instructions.iter().find(|node| matches!(node.op, Op::Update(_))).unwrap().clone();
            let Op::Update(update) = &node.op else { unreachable!() };
            update.in_plan(&train, &node.inputs).unwrap();
            let ranges: Vec<_> = update.ranges.iter().map(|range| (range.start, range.end())).collect();
            (ranges, train.updated_parts())
        };
        let part = |elements: Range<usize>, state: usize| UpdatedPart { elements, state };
        let (ranges, parts) = of(0);
        assert_eq!(ranges, [(0, 300), (304, 314), (1328, 1560)]);
        assert_eq!(parts, [part(0..304, 0), part(304..320, 304), part(1328..1568, 320)]);
        assert_eq!(of(1), (vec![(320, 1320)], vec![part(320..1328, 0)]));
        // Which rank has nothing to update.
        let many = plans(9, |options| CompileOptions { shards: 9, ..options }).of_rank(8);
        let train = many.train.unwrap();
        assert!(train.updated_parts().is_empty() && !end(&train).contains(" update "));
        assert!(many.state.iter().all(|tensor| !tensor.name.starts_with("optimizer.")));
    }

    #[test]
    fn what_needs_a_norm_is_not_cut() {
        let lars = |options| CompileOptions {
            optimizer: Lars::default().into(),
            groups: ParameterGroups::one(0.5),
            ..options
        };
        let all = plans(3, |options| CompileOptions { shards: 3, ..lars(options) });
        let ranges = |plan: &Plan| {
            let node = plan.instructions.iter().find_map(|node| match &node.op {
                Op::Update(update) => Some(update.ranges.clone()),
                _ => None,
            });
            node.unwrap_or_default()
        };
        let mut parts: Vec<_> = (0..3).flat_map(|rank| ranges(&all.clone().of_rank(rank).train.unwrap())).collect();
        parts.sort_unstable_by_key(|range| range.start);
        assert_eq!(parts, ranges(all.train.as_ref().unwrap()));
    }

    #[test]
    fn parts_are_as_equal_as_tensors_allow() {
        let mut random = RandomStream::new(7, "tensors", 0, 0);
        for _ in 0..2000 {
            let mut below = |limit: u32| (random.next_u32() % limit) as usize;
            let start = below(50);
            let count = below(30);
            let ranks = 1 + below(5);
            let lens: Vec<usize> = (0..count).map(|_| 1 + below(200)).collect();
            let loads: Vec<usize> = (0..ranks).map(|_| below(300)).collect();
            let ends: Vec<usize> = lens
                .iter()
                .scan(start, |end, len| {
                    *end += len;
                    Some(*end)
                })
                .collect();
            let borders = divide(start, &ends, &loads);
            assert!(borders.len() == ranks + 1 && borders.is_sorted(), "{borders:?}");
            assert_eq!([borders[0], borders[ranks]], [start, ends.last().copied().unwrap_or(start)]);
            assert!(borders[1..].iter().all(|border| *border == start || ends.contains(border)));
            // No rank has to take more than an equal share and one tensor.
            let all = loads.iter().chain(&lens).sum::<usize>();
            let after = loads.iter().zip(borders.windows(2)).map(|(load, part)| load + part[1] - part[0]).max();
            let most = all.div_ceil(ranks) + lens.iter().max().unwrap_or(&0);
            assert!(after <= loads.iter().copied().chain([most]).max(), "{borders:?} {loads:?}");
        }
    }
}
