//! Exchanges values between all shards of all ranks, by plain all-gathers. Loops in one process then combine them.

use enmasse_device::{DeviceError, Hosting, ProgramGroups};

/// Turns the values of the local shards into those of all shards.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub hosting: Hosting,
    pub groups: ProgramGroups,
}

impl Exchange {
    /// One value of every shard, in the order of the shards, given those of the local shards. All have the same length.
    pub fn all(&self, own: Vec<Vec<f64>>) -> Result<Vec<Vec<f64>>, DeviceError> {
        let Some(group) = &self.groups.replicas else { return Ok(own) };
        let map = self.hosting.map();
        let len = own.first().map_or(0, Vec::len);
        let most = map.local(0).len();
        // No rank hosts more shards than the first. The others pad their input with zeros that are ignored.
        let mut input = own.concat();
        input.resize(most * len, 0.0);
        let mut gathered = vec![0.0; map.ranks() * input.len()];
        group.all_gather(&input, &mut gathered)?;
        let of_rank = |rank: usize| map.local(rank).enumerate().map(move |(local, _)| rank * most + local);
        let places = (0..map.ranks()).flat_map(of_rank);
        Ok(places.map(|place| gathered[place * len..(place + 1) * len].to_vec()).collect())
    }
}
