//! What the ranks of a group exchange: sums of buckets, and the statistics of joint batch norms.
//!
//! By way of the host a rank combines its own shards as far as whole subtrees of the fixed tree go, exactly as a program that
//! hosts all shards combines them, so the number of ranks changes no bit. By NCCL this is so for statistics, which are gathered
//! from all shards; how buckets are summed is said in `ops::all_reduce`.

use enmasse_comm::ShardMap;
use enmasse_graph::Plan;

use super::{Lowering, Placed};
use crate::sequence::{Call, Exchange, Joins, StreamKind};
use crate::work::Span;

impl Lowering<'_> {
    pub fn map(&self) -> &ShardMap {
        self.hosting.map()
    }

    /// Whether there are others to exchange with.
    pub fn are_several(&self) -> bool {
        self.map().ranks() > 1
    }

    /// An exchange with a place of its own in the host's memory.
    pub fn exchange(&mut self, joins: Joins, from: Vec<Span>, to: Span) -> Exchange {
        let staging = self.sequence.staging;
        let bytes = match joins {
            Joins::Sum | Joins::Reduce => from.iter().map(|span| span.bytes).sum(),
            Joins::Broadcast => from.first().unwrap_or(&to).bytes,
            Joins::Gather { each } => each + to.bytes,
        };
        self.sequence.staging += bytes.next_multiple_of(Plan::ALIGNMENT);
        Exchange { joins, from, to, staging }
    }

    /// Calls of NCCL in a stream of their own, after all work until now. The event says that they have ended.
    pub fn aside(&mut self, [begin, end]: [usize; 2], calls: impl IntoIterator<Item = Call>) -> Vec<Placed> {
        self.sequence.events = self.sequence.events.max(end + 1);
        let beside = [Call::Await(begin)].into_iter().chain(calls).chain([Call::Record(end)]);
        let beside = beside.map(|call| (StreamKind::Collectives, call));
        [(StreamKind::Compute, Call::Record(begin))].into_iter().chain(beside).collect()
    }

    /// The same with events of their own. The work that follows waits for the end.
    pub fn aside_at_once(&mut self, calls: impl IntoIterator<Item = Call>) -> Vec<Placed> {
        let begin = self.sequence.events.max(of_bucket(self.plan.buckets.len())[0]);
        let mut calls = self.aside([begin, begin + 1], calls);
        calls.push((StreamKind::Compute, Call::Await(begin + 1)));
        calls
    }
}

/// The events before and after the sum of a bucket. Each is recorded once in a step.
pub(crate) fn of_bucket(bucket: usize) -> [usize; 2] {
    [2 * bucket, 2 * bucket + 1]
}
