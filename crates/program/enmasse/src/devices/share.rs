//! A rank's share of its machine: which of the ranks there it is, and how many threads are its own.

use std::sync::Arc;

use enmasse_comm::{Cause, Group};
use enmasse_cpu::Cores;
use enmasse_device::DeviceRequest;
use enmasse_train::ProgramConfig;

/// A rank's place on its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its number among the ranks that the launcher has started there.
    pub local_rank: usize,
    /// Its number among the ranks that may run on the same cores. Launchers that bind ranks give each its own cores, or share
    /// some among a few; the others leave all cores to all ranks, to be divided here.
    pub sharer: usize,
    /// The number of these ranks.
    pub sharers: usize,
}

impl Share {
    /// That of the only rank.
    pub const WHOLE: Share = Share { local_rank: 0, sharer: 0, sharers: 1 };

    /// This rank's share, which all ranks of the group find out together. `node` tells machines of one name apart.
    ///
    /// # Errors
    /// The group's [`Cause`]: a rank calls another operation, has failed or left, or comes too late.
    pub fn of(group: &Group, node: usize) -> Result<Self, Arc<Cause>> {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let machine = format!("{host} {node}");
        let cores = Cores::available().map_or(String::new(), |cores| cores.to_string());
        let of_all = |own: &str| group.all_gather_bytes(own.as_bytes());
        let (local_rank, _) = among_equals(&of_all(&machine)?, group.rank());
        let (sharer, sharers) = among_equals(&of_all(&format!("{machine} {cores}"))?, group.rank());
        Ok(Share { local_rank, sharer, sharers })
    }

    /// The request for a device of this rank. Each rank that shares the `cores` has `threads` of them, or its part of all.
    pub fn request(&self, config: &ProgramConfig, cores: usize) -> DeviceRequest {
        let Share { local_rank, sharer, sharers } = *self;
        let threads = (0..sharers).map(|rank| config.threads_of_rank(cores, rank, sharers)).collect();
        DeviceRequest { local_rank, threads, sharer, ..DeviceRequest::default() }
    }
}

/// The number of equal values before a rank's own, and in total.
fn among_equals(all: &[Vec<u8>], rank: usize) -> (usize, usize) {
    let alike = |ranks: &[Vec<u8>]| ranks.iter().filter(|other| **other == all[rank]).count();
    (alike(&all[..rank]), alike(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_divide_the_cores_that_they_share() {
        let check = |ranks: &[&str], expected: &[(usize, usize)]| {
            let all: Vec<_> = ranks.iter().map(|rank| rank.as_bytes().to_vec()).collect();
            let found: Vec<_> = (0..all.len()).map(|rank| among_equals(&all, rank)).collect();
            assert_eq!(found, expected, "{ranks:?}");
        };
        check(&["a 0 0,1"], &[(0, 1)]);
        check(&["a 0 0,1", "a 0 0,1", "b 1 0,1"], &[(0, 2), (1, 2), (0, 1)]);
        // Bound by the launcher: each to its own cores, or two to a memory node.
        check(&["a 0 0,1", "a 0 2,3"], &[(0, 1), (0, 1)]);
        check(&["a 0 0,1", "a 0 2,3", "a 0 0,1", "a 0 2,3"], &[(0, 2), (0, 2), (1, 2), (1, 2)]);
    }
}
