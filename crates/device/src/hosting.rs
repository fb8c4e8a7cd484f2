//! Which shards of the global batch a program computes.

use std::ops::Range;

use enmasse_comm::{Group, ShardMap};
use enmasse_graph::Plans;

use crate::DeviceError;

/// A program's place among the shards of its plans.
///
/// A rank hosts one or more of them, next to each other, and a program without a group hosts all. How they are spread changes
/// no bit of what is computed: everything over shards is summed in the tree of [`ShardMap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hosting {
    map: ShardMap,
    rank: usize,
}

impl Hosting {
    /// The place of this rank of `group`. An error where there are more ranks than shards: some would have nothing to do.
    pub fn new(plans: &Plans, group: Option<&Group>) -> Result<Self, DeviceError> {
        let (rank, ranks) = group.map_or((0, 1), |group| (group.rank(), group.world_size()));
        // Evaluation alone has no collectives: any number of ranks may share it out, each with a program of its own.
        let (rank, ranks) = if plans.train.is_some() { (rank, ranks) } else { (0, 1) };
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
        self.map.hosted(self.rank)
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.shards().len()
    }

    /// How all shards are spread over the ranks.
    pub fn map(&self) -> &ShardMap {
        &self.map
    }

    /// This program's rank.
    pub fn rank(&self) -> usize {
        self.rank
    }
}
