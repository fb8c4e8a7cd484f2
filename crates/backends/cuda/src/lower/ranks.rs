//! What the ranks of a group exchange: sums of buckets, and the statistics of joint batch norms.
//!
//! By way of the host a rank combines its own shards as far as whole subtrees of the fixed tree go, exactly as a program that
//! hosts all shards combines them, so the number of ranks changes no bit. By NCCL this is so for statistics, which are gathered
//! from all shards; how buckets are summed is said in `collectives`.

use enmasse_comm::ShardMap;
use enmasse_device::{Hosting, Summation};
use enmasse_graph::Plan;

use super::collectives::Collectives;
use super::operand::Operands;
use crate::CudaError;
use crate::kernels::gather::gather_rows;
use crate::kernels::operands::{SCRATCH, floats};
use crate::kernels::sync::{scratch_floats, sync_statistics, sync_sum};
use crate::sequence::{Call, Collective, Exchange, Joins, StreamKind};
use crate::way::Way;
use crate::work::{Kernel, Span};

/// A call in a stream.
pub(super) type Placed = (StreamKind, Call);

/// Calls in the stream of the step's own work.
pub(super) fn computed(calls: impl IntoIterator<Item = Call>) -> Vec<Placed> {
    calls.into_iter().map(|call| (StreamKind::Compute, call)).collect()
}

/// Combines pairs of rows of several shards, and gives the result to others.
type Combine = fn(&[[Span; 2]], &[[Span; 2]]) -> Vec<Kernel>;

/// The exchanges of a sequence in the making.
pub(super) struct Ranks<'a> {
    pub hosting: &'a Hosting,
    pub way: Way,
    /// Bytes of the host's memory so far. Each exchange has a place of its own there.
    pub staging: &'a mut usize,
    /// Events so far. Each is recorded once in a step.
    pub events: &'a mut usize,
}

impl Ranks<'_> {
    fn map(&self) -> &ShardMap {
        self.hosting.map()
    }

    /// Whether there are others to exchange with.
    fn are_several(&self) -> bool {
        self.map().ranks() > 1
    }

    fn exchange(&mut self, joins: Joins, from: Vec<Span>, to: Span) -> Exchange {
        let staging = *self.staging;
        let bytes = match joins {
            Joins::Sum | Joins::Reduce => from.iter().map(|span| span.bytes).sum(),
            Joins::Broadcast => from.first().unwrap_or(&to).bytes,
            Joins::Gather { each } => each + to.bytes,
        };
        *self.staging += bytes.next_multiple_of(Plan::ALIGNMENT);
        Exchange { joins, from, to, staging }
    }

    /// Calls of NCCL in a stream of their own, after all work until now. The event says that they have ended.
    fn aside(&mut self, [begin, end]: [usize; 2], calls: impl IntoIterator<Item = Call>) -> Vec<Placed> {
        *self.events = (*self.events).max(end + 1);
        let beside = [Call::Await(begin)].into_iter().chain(calls).chain([Call::Record(end)]);
        let beside = beside.map(|call| (StreamKind::Collectives, call));
        [(StreamKind::Compute, Call::Record(begin))].into_iter().chain(beside).collect()
    }

    /// Work at the end of a bucket, for one local shard: its folds, and after the last shard the start of the sum, for all ranks or
    /// the first one.
    pub fn start(&mut self, o: &Operands, bucket: usize, joins: Joins) -> Result<Vec<Placed>, CudaError> {
        let mut calls = computed(o.folds(bucket)?.into_iter().map(Call::Kernel));
        if !self.are_several() || o.local + 1 < o.places.schedule.shards.len() {
            return Ok(calls);
        }
        let partials = 0..o.places.schedule.partials.len();
        let from: Vec<Span> = partials.map(|slot| o.bucket(bucket, slot)).collect::<Result<_, _>>()?;
        let to = from[0];
        match self.way {
            Way::Host => calls.extend(computed([Call::Start(bucket, self.exchange(joins, from, to))])),
            Way::Nccl(summation) => {
                let Collectives { before, beside } = match summation {
                    Summation::Library if joins == Joins::Reduce => Collectives::reduce(&from),
                    _ if joins == Joins::Reduce => return Err(o.unsupported()),
                    Summation::Library => Collectives::library(&from),
                    Summation::Bf16 => Collectives::bf16(&from, o.gradients_of(to)),
                    Summation::Tree => Collectives::tree(self.map(), &from),
                };
                calls.extend(computed(before));
                calls.extend(self.aside(of_bucket(bucket), beside));
            }
        }
        Ok(calls)
    }

    /// The wait for the sum of a bucket.
    pub fn finish(&self, o: &Operands, bucket: usize) -> Result<Vec<Placed>, CudaError> {
        // One program that hosts all shards has added them up by now.
        if !self.are_several() {
            return Ok(Vec::new());
        }
        let [_, end] = of_bucket(bucket);
        Ok(computed([match self.way {
            Way::Host => Call::Finish(bucket, o.bucket(bucket, 0)?),
            Way::Nccl(_) => Call::Await(end),
        }]))
    }

    /// Copies of the first rank's values, on the others.
    pub fn replicate(&mut self, o: &Operands) -> Result<Vec<Placed>, CudaError> {
        if !self.are_several() {
            return Ok(Vec::new());
        }
        let values = (0..o.node.inputs.len()).map(|index| o.input(index)).collect::<Result<Vec<_>, _>>()?;
        let sends = self.hosting.rank() == 0;
        let ranges = adjacent(values);
        Ok(match self.way {
            Way::Host => {
                let exchange = |at: Span| {
                    let (from, to) = if sends { (vec![at], Span { bytes: 0, ..at }) } else { (Vec::new(), at) };
                    Call::Exchange(self.exchange(Joins::Broadcast, from, to))
                };
                computed(ranges.into_iter().map(exchange).collect::<Vec<_>>())
            }
            Way::Nccl(_) => {
                let begin = (*self.events).max(of_bucket(o.plan.buckets.len())[0]);
                let copies = ranges.into_iter().map(|at| Call::Collective(Collective::Broadcast { at, sends }));
                let beside = self.aside([begin, begin + 1], copies);
                [beside, computed([Call::Await(begin + 1)])].concat()
            }
        })
    }

    /// Mean and variance over all shards.
    pub fn statistics(&mut self, o: &Operands) -> Result<Vec<Placed>, CudaError> {
        self.of_all_shards(o, sync_statistics)
    }

    /// The sums of two tensors over all shards.
    pub fn sums(&mut self, o: &Operands) -> Result<Vec<Placed>, CudaError> {
        if !self.are_several() || matches!(self.way, Way::Nccl(_)) {
            return self.of_all_shards(o, sync_sum);
        }
        let (own, results) = (o.pairs_of_all(true)?, o.pairs_of_all(false)?);
        let kernels = |of: &[[Span; 2]], to: &[[Span; 2]]| sync_sum(of, to).into_iter().map(Call::Kernel);
        let (channels, partials) = (channels(&own), &o.places.schedule.partials);
        let all = floats(SCRATCH, scratch_floats(own.len(), channels), partials.len() * 2 * channels);
        let of_partial: Vec<[Span; 2]> = (0..partials.len()).map(|at| pair(all, 2 * channels * at, channels)).collect();
        let mut calls: Vec<Call> = Vec::new();
        for (partial, to) in partials.iter().zip(&of_partial) {
            calls.extend(kernels(&own[partial.clone()], &[*to]));
        }
        let whole = |[first, second]: [Span; 2]| first.hull(second);
        let from = of_partial.iter().map(|&pair| whole(pair)).collect();
        calls.push(Call::Exchange(self.exchange(Joins::Sum, from, whole(of_partial[0]))));
        calls.extend(kernels(&of_partial[..1], &results));
        Ok(computed(calls))
    }

    /// What all shards together make of two rows of each. Every rank gathers the rows of all, and combines them itself.
    fn of_all_shards(&mut self, o: &Operands, combine: Combine) -> Result<Vec<Placed>, CudaError> {
        let (own, results) = (o.pairs_of_all(true)?, o.pairs_of_all(false)?);
        let kernels = |of_shards: &[[Span; 2]]| computed(combine(of_shards, &results).into_iter().map(Call::Kernel));
        if !self.are_several() {
            return Ok(kernels(&own));
        }
        let (map, channels) = (*self.map(), channels(&own));
        let (ranks, most) = (map.ranks(), map.local(0).len());
        let all = floats(SCRATCH, scratch_floats(map.shards(), channels), ranks * most * 2 * channels);
        let place = |rank: usize, local: usize| 2 * channels * (rank * most + local);
        let of_shards = (0..ranks).flat_map(|rank| (0..map.local(rank).len()).map(move |local| (rank, local)));
        let of_shards: Vec<[Span; 2]> =
            of_shards.map(|(rank, local)| pair(all, place(rank, local), channels)).collect();
        let mut calls = match self.way {
            Way::Host => {
                let each = most * 2 * channels * size_of::<f32>();
                computed([Call::Exchange(self.exchange(Joins::Gather { each }, own.as_flattened().to_vec(), all))])
            }
            Way::Nccl(_) => {
                let from = floats(all.place, place(self.hosting.rank(), 0), own.len() * 2 * channels);
                let begin = (*self.events).max(of_bucket(o.plan.buckets.len())[0]);
                let gather = Call::Collective(Collective::AllGather { from, to: all, ranks });
                let rows = gather_rows(own.as_flattened(), from.place).into_iter().map(Call::Kernel);
                let beside = self.aside([begin, begin + 1], [gather]);
                [computed(rows), beside, computed([Call::Await(begin + 1)])].concat()
            }
        };
        calls.extend(kernels(&of_shards));
        Ok(calls)
    }
}

/// Values, with those that lie one after another as one range.
fn adjacent(values: Vec<Span>) -> Vec<Span> {
    let mut ranges: Vec<Span> = Vec::new();
    for value in values {
        match ranges.last_mut().filter(|last| last.is_before(value)) {
            Some(last) => *last = last.hull(value),
            None => ranges.push(value),
        }
    }
    ranges
}

/// The events before and after the sum of a bucket.
fn of_bucket(bucket: usize) -> [usize; 2] {
    [2 * bucket, 2 * bucket + 1]
}

fn channels(pairs: &[[Span; 2]]) -> usize {
    pairs.first().map_or(0, |[first, _]| first.bytes / size_of::<f32>())
}

/// Two neighbouring pieces of `count` floats each, from float `at` of a range.
fn pair(range: Span, at: usize, count: usize) -> [Span; 2] {
    [at, at + count].map(|at| floats(range.place, at, count))
}
