//! Sums of gradients over all ranks, in buckets: by way of the host, or by NCCL in three ways.
//!
//! - In NCCL's own order, which depends on the number of ranks.
//! - The same in bf16.
//! - With `--sum tree`, gathered, and added in the fixed tree on every rank.

use std::collections::HashMap;
use std::ops::Range;

use enmasse_comm::{Fold, ShardMap, tree_fold};
use enmasse_device::Summation;
use enmasse_graph::ops::{AllReduceStart, AllReduceWait, ReduceStart, ReduceWait};
use enmasse_graph::{Arena, Bucket};
use enmasse_tensor::DType;

use super::{Lowered, Lowering, OnCuda, Operands, computed};
use crate::CudaError;
use crate::kernels::elementwise::{add, cast};
use crate::lower::of_bucket;
use crate::sequence::{Call, Collective, Joins};
use crate::way::Way;
use crate::work::{Kernel, Memory, Place, Span};

impl OnCuda for AllReduceStart {
    fn lower(&self, o: &Operands, lowering: &mut Lowering) -> Lowered {
        start(o, lowering, self.bucket, Joins::Sum)
    }
}

impl OnCuda for AllReduceWait {
    fn lower(&self, o: &Operands, lowering: &mut Lowering) -> Lowered {
        wait(o, lowering, self.bucket)
    }
}

impl OnCuda for ReduceStart {
    fn lower(&self, o: &Operands, lowering: &mut Lowering) -> Lowered {
        start(o, lowering, self.bucket, Joins::Reduce)
    }
}

impl OnCuda for ReduceWait {
    fn lower(&self, o: &Operands, lowering: &mut Lowering) -> Lowered {
        wait(o, lowering, self.bucket)
    }
}

/// Work at the end of a bucket, for one local shard: its folds, and after the last shard the start of the sum, for all ranks or
/// the first one.
fn start(o: &Operands, lowering: &mut Lowering, bucket: usize, joins: Joins) -> Lowered {
    let mut calls = computed(o.folds(bucket)?);
    if !lowering.are_several() || o.local + 1 < o.places.schedule.shards.len() {
        return Ok(calls);
    }
    let partials = 0..o.places.schedule.partials.len();
    let from: Vec<Span> = partials.map(|slot| o.bucket(bucket, slot)).collect::<Result<_, _>>()?;
    let to = from[0];
    match lowering.way {
        Way::Host => calls.extend(computed([Call::Start(bucket, lowering.exchange(joins, from, to))])),
        Way::Nccl(summation) => {
            let Collectives { before, beside } = match summation {
                Summation::Library if joins == Joins::Reduce => Collectives::reduce(&from),
                _ if joins == Joins::Reduce => return Err(o.unsupported()),
                Summation::Library => Collectives::library(&from),
                Summation::Bf16 => Collectives::bf16(&from, o.gradients_of(to)),
                Summation::F16 => return Err(o.unsupported()),
                Summation::Tree => Collectives::tree(lowering.map(), &from),
            };
            calls.extend(computed(before));
            calls.extend(lowering.aside(of_bucket(bucket), beside));
        }
    }
    Ok(calls)
}

/// The wait for the sum of a bucket.
fn wait(o: &Operands, lowering: &Lowering, bucket: usize) -> Lowered {
    // One program that hosts all shards has added them up by now.
    if !lowering.are_several() {
        return Ok(Vec::new());
    }
    let [_, end] = of_bucket(bucket);
    Ok(computed([match lowering.way {
        Way::Host => Call::Finish(bucket, o.bucket(bucket, 0)?),
        Way::Nccl(_) => Call::Await(end),
    }]))
}

impl Operands<'_> {
    /// A bucket in a slot.
    fn bucket(&self, bucket: usize, slot: usize) -> Result<Span, CudaError> {
        let whole = |bucket: &&Bucket| bucket.dtype == DType::F32;
        let bytes = self.plan.buckets.get(bucket).filter(whole).ok_or_else(|| self.unsupported())?.bytes();
        Ok(self.gradient_range(slot, bytes.start, bytes.len()))
    }

    /// The bytes of a bucket that are gradients. The others come after them, and are carried with the last bucket.
    fn gradients_of(&self, bucket: Span) -> usize {
        let arena = self.places.plans.arena_bytes(Arena::Gradients);
        (self.plan.trainable * size_of::<f32>()).saturating_sub(bucket.place.offset % arena).min(bucket.bytes)
    }

    /// The additions of a bucket that become possible once this shard's gradients are complete.
    fn folds(&self, bucket: usize) -> Result<Vec<Kernel>, CudaError> {
        let folds = self.places.schedule.shards[self.local].folds.iter();
        let fold = |fold: &Fold| {
            let into = self.bucket(bucket, fold.into)?;
            let from = self.bucket(bucket, fold.from)?;
            Ok(add(DType::F32, into, from, into))
        };
        folds.map(fold).collect()
    }
}

/// The calls that sum a bucket. The sum is in place of the first of a rank's partial sums.
struct Collectives {
    /// In the stream of the step's own work.
    before: Vec<Call>,
    /// In NCCL's stream.
    beside: Vec<Call>,
}

impl Collectives {
    /// In NCCL's order. A rank first adds up its own partial sums.
    fn library(partials: &[Span]) -> Self {
        Collectives { before: own_sum(partials), beside: vec![all_reduce(partials[0], DType::F32)] }
    }

    /// The same for the first rank alone.
    fn reduce(partials: &[Span]) -> Self {
        let reduce = Call::Collective(Collective::Reduce { at: partials[0] });
        Collectives { before: own_sum(partials), beside: vec![reduce] }
    }

    /// The same of gradients rounded to bf16. The rest of the bucket, losses and metrics, stays f32.
    fn bf16(partials: &[Span], gradients: usize) -> Self {
        let [own, rest] = split(partials[0], gradients);
        let narrow = Span { place: Place { memory: Memory::Collectives, offset: 0 }, bytes: own.bytes / 2 };
        let mut beside = vec![
            Call::Kernel(cast(DType::F32, own, DType::Bf16, narrow)),
            all_reduce(narrow, DType::Bf16),
            Call::Kernel(cast(DType::Bf16, narrow, DType::F32, own)),
        ];
        if own.bytes == 0 {
            beside.clear();
        }
        if rest.bytes > 0 {
            beside.push(all_reduce(rest, DType::F32));
        }
        Collectives { before: own_sum(partials), beside }
    }

    /// In the fixed tree over shards: every rank gathers the partial sums of all, and adds them itself.
    fn tree(map: &ShardMap, partials: &[Span]) -> Self {
        let to = partials[0];
        let ranks = map.ranks();
        let most = (0..ranks).map(|rank| map.partials(rank).count()).max().unwrap_or(0);
        let gathered = |partial: usize, rank: usize, count: usize| {
            let offset = (partial * ranks + rank) * to.bytes;
            Span { place: Place { memory: Memory::Collectives, offset }, bytes: count * to.bytes }
        };
        // A rank that has fewer sends one of its own, which nobody reads.
        let gather = |partial: usize| {
            let from = *partials.get(partial).unwrap_or(&to);
            Call::Collective(Collective::AllGather { from, to: gathered(partial, 0, ranks), ranks })
        };
        let mut beside: Vec<Call> = (0..most).map(gather).collect();
        let places = (0..ranks).flat_map(|rank| {
            map.partials(rank).enumerate().map(move |(partial, shards)| (shards, gathered(partial, rank, 1)))
        });
        let mut additions = additions(map.shards(), &places.collect());
        // The last one is the root's.
        if let Some((_, _, sum)) = additions.last_mut() {
            *sum = to;
        }
        beside.extend(additions.into_iter().map(|(left, right, sum)| Call::Kernel(add(DType::F32, left, right, sum))));
        Collectives { before: Vec::new(), beside }
    }
}

/// The sums above partial sums in the tree over shards, in order: both operands, and the place of the first for the result.
fn additions(shards: usize, partials: &HashMap<Range<usize>, Span>) -> Vec<(Span, Span, Span)> {
    type Node = (Range<usize>, Option<Span>);
    let mut additions = Vec::new();
    let mut leaf = |shard: usize| -> Node { (shard..shard + 1, partials.get(&(shard..shard + 1)).copied()) };
    let mut combine = |(left, first): Node, (right, second): Node| -> Node {
        let shards = left.start..right.end;
        let sum = partials.get(&shards).copied().or_else(|| {
            additions.push((first?, second?, first?));
            first
        });
        (shards, sum)
    };
    tree_fold(shards, &mut leaf, &mut combine);
    additions
}

fn own_sum(partials: &[Span]) -> Vec<Call> {
    partials[1..].iter().map(|&partial| Call::Kernel(add(DType::F32, partials[0], partial, partials[0]))).collect()
}

fn all_reduce(at: Span, dtype: DType) -> Call {
    Call::Collective(Collective::AllReduce { at, dtype })
}

/// The first bytes of a span, and the others.
fn split(span: Span, first: usize) -> [Span; 2] {
    let rest = Place { offset: span.place.offset + first, ..span.place };
    [Span { bytes: first, ..span }, Span { place: rest, bytes: span.bytes - first }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additions_are_those_of_the_tree() {
        let check = |shards: usize, ranks: usize, expected: &[(usize, usize)]| {
            let map = ShardMap::new(shards, ranks).unwrap();
            // A partial sum lies at the number of its first shard.
            let place = |shards: Range<usize>| {
                let place = Place { memory: Memory::Collectives, offset: shards.start };
                (shards, Span { place, bytes: 1 })
            };
            let partials = (0..ranks).flat_map(|rank| map.partials(rank)).map(place).collect();
            let found = additions(shards, &partials);
            let offsets = |&(left, right, _): &(Span, Span, Span)| (left.place.offset, right.place.offset);
            assert_eq!(found.iter().map(offsets).collect::<Vec<_>>(), expected);
            assert!(found.iter().all(|(left, _, sum)| left == sum));
        };
        check(2, 2, &[(0, 1)]);
        check(4, 4, &[(0, 1), (2, 3), (0, 2)]);
        check(4, 2, &[(0, 2)]);
        check(3, 3, &[(0, 1), (0, 2)]);
        check(6, 2, &[(2, 3), (0, 2), (0, 4)]);
    }
}
