//! What all shards know of each other, wherever they are hosted: plain all-gathers, and then loops in one process.

use enmasse_comm::Group;
use enmasse_device::{DeviceError, Hosting};

/// The way from the values of hosted shards to those of all shards.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub hosting: Hosting,
    pub group: Option<Group>,
}

impl Exchange {
    /// One value of every shard, in their order, of those that this program hosts. All have the same length.
    pub fn all(&self, own: Vec<Vec<f64>>) -> Result<Vec<Vec<f64>>, DeviceError> {
        let Some(group) = &self.group else { return Ok(own) };
        let map = self.hosting.map();
        let (len, most) = (own.first().map_or(0, Vec::len), map.hosted(0).len());
        // The first rank hosts most shards; the others fill up with what nobody reads.
        let mut input = own.concat();
        input.resize(most * len, 0.0);
        let mut gathered = vec![0.0; map.ranks() * input.len()];
        group.all_gather(&input, &mut gathered)?;
        let of_rank = |rank: usize| map.hosted(rank).enumerate().map(move |(hosted, _)| rank * most + hosted);
        let places = (0..map.ranks()).flat_map(of_rank);
        Ok(places.map(|place| gathered[place * len..(place + 1) * len].to_vec()).collect())
    }
}
