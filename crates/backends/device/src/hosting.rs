//! Hosting: which shards of the global batch a program computes.
//!
//! Data parallelism is defined over shards: shard s of S is the s-th contiguous piece of the global
//! batch. A rank hosts one or more adjacent shards, and a program without a group hosts all of
//! them. S fixes the arithmetic: with the same S the weights are the same bits on any number of
//! ranks, because all sums over shards follow the tree of [`ShardMap`]. `schedule` says how one
//! program computes several shards. `Program::rejoin` moves a live program to another group.

use std::ops::Range;

use enmasse_comm::{Group, ShardMap};
use enmasse_graph::Plans;

use crate::DeviceError;

/// A program's place among the shards of its plans.
///
/// A rank hosts one or more adjacent shards. A program without a group hosts all shards. Their distribution over ranks
/// changes no bit of the results, because all sums over shards follow the tree of [`ShardMap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hosting {
    map: ShardMap,
    rank: usize,
}

impl Hosting {
    /// The place of this rank of `group`.
    ///
    /// # Errors
    /// There are more ranks than shards: some would have nothing to do.
    pub fn new(plans: &Plans, group: Option<&Group>) -> Result<Self, DeviceError> {
        let (rank, ranks) = group.map_or((0, 1), |group| (group.rank(), group.world_size()));
        // A program for evaluation only has no collectives. Any number of ranks may divide the work, each with its own
        // program.
        let (rank, ranks) = if plans.train.is_some() { (rank, ranks) } else { (0, 1) };
        let partition = plans.train.as_ref().and_then(|train| train.partition.as_ref());
        // One program that hosts all shards can run the plan that all ranks agree on.
        if let Some(partition) = partition.filter(|partition| {
            (group.is_some() || partition.rank.is_some()) && (partition.rank, partition.ranks()) != (Some(rank), ranks)
        }) {
            let of = partition.rank.map_or("no rank".to_owned(), |rank| format!("rank {rank}"));
            let reason = format!(
                "rank {rank} of {ranks} cannot run the part of {of} of {}: use `Plans::of_rank`",
                partition.ranks()
            );
            return Err(DeviceError::Unsupported(reason));
        }
        let map =
            ShardMap::new(plans.evaluate.shards, ranks).map_err(|error| DeviceError::Unsupported(error.to_string()))?;
        Ok(Hosting { map, rank })
    }

    /// The place of `rank` in `map`.
    pub fn of(map: ShardMap, rank: usize) -> Self {
        Hosting { map, rank }
    }

    /// The shards that this program hosts.
    pub fn shards(&self) -> Range<usize> {
        self.map.local(self.rank)
    }

    /// The number of shards that this program hosts.
    pub fn count(&self) -> usize {
        self.shards().len()
    }

    /// The distribution of all shards over the ranks.
    pub fn map(&self) -> &ShardMap {
        &self.map
    }

    /// This program's rank.
    pub fn rank(&self) -> usize {
        self.rank
    }
}
