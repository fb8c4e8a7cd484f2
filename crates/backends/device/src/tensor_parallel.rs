//! The ranks of a tensor-parallel model: which part of its cut layers and which replica a rank is, and the groups that follow.
//!
//! The ranks of a replica are adjacent: they exchange activations in the middle of each pass, and so should be on one node.

use enmasse_comm::Group;

use crate::DeviceError;
use crate::stages::part;

/// A rank's place in a model whose layers are cut over several ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorRank {
    /// Its part of each cut layer.
    pub part: usize,
    /// Ranks that have a part of each cut layer.
    pub parts: usize,
    /// The number of its replica, whose ranks compute the same samples.
    pub replica: usize,
    /// The number of replicas, each for shards of its own.
    pub replicas: usize,
}

impl TensorRank {
    /// The place of `rank` of a number of ranks.
    ///
    /// # Errors
    /// The number is no multiple of the parts.
    pub fn new(rank: usize, ranks: usize, parts: usize) -> Result<Self, DeviceError> {
        if parts == 0 || ranks == 0 || !ranks.is_multiple_of(parts) {
            let reason = format!("layers cut over {parts} ranks need {parts} ranks or a multiple of them, got {ranks}");
            return Err(DeviceError::Unsupported(reason));
        }
        Ok(TensorRank { part: rank % parts, parts, replica: rank / parts, replicas: ranks / parts })
    }

    /// The first rank of a replica.
    pub fn first_rank(&self, replica: usize) -> usize {
        replica * self.parts
    }

    /// The group of the ranks with this rank's part. All ranks of `group` call it.
    ///
    /// # Errors
    /// The group fails.
    pub fn replicas_of(&self, group: &Group) -> Result<Group, DeviceError> {
        part(group, self.part)
    }

    /// The group of the ranks of this rank's replica, in the order of their parts. All ranks of `group` call it.
    ///
    /// # Errors
    /// The group fails.
    pub fn parts_of(&self, group: &Group) -> Result<Group, DeviceError> {
        part(group, self.replica)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_replica_are_adjacent_ranks() {
        let check = |ranks: usize, parts: usize, expected: &[[usize; 2]]| {
            let places = (0..ranks).map(|rank| TensorRank::new(rank, ranks, parts).unwrap());
            assert_eq!(places.map(|place| [place.part, place.replica]).collect::<Vec<_>>(), expected);
        };
        check(2, 2, &[[0, 0], [1, 0]]);
        check(4, 2, &[[0, 0], [1, 0], [0, 1], [1, 1]]);
        let error = TensorRank::new(0, 3, 2).unwrap_err().to_string();
        assert_eq!(error, "layers cut over 2 ranks need 2 ranks or a multiple of them, got 3");
    }
}
