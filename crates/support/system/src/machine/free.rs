//! How much more memory this process could get.

use crate::machine::{Limits, MemInfo};

/// What bounds the memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The machine.
    Machine,
    /// The limit of a control group.
    ControlGroup,
}

/// Memory that this process could get in addition to its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free {
    /// Its size in bytes.
    pub bytes: u64,
    /// What bounds it.
    pub bound: Bound,
}

impl Free {
    /// Asks the kernel; `None` if it reports neither the machine's memory nor a limit.
    pub fn gather() -> Option<Self> {
        Self::least(MemInfo::gather(), &Limits::gather())
    }

    fn least(machine: Option<MemInfo>, limits: &Limits) -> Option<Self> {
        let machine = machine.map(|machine| Free { bytes: machine.available, bound: Bound::Machine });
        let group =
            limits.memory.map(|(limit, used)| Free { bytes: limit.saturating_sub(used), bound: Bound::ControlGroup });
        machine.into_iter().chain(group).min_by_key(|free| free.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tighter_bound_counts() {
        let check = |available: Option<u64>, memory: Option<(u64, u64)>, expected: Option<(u64, Bound)>| {
            let machine = available.map(|available| MemInfo { total: 100, available, swap: 0 });
            let found = Free::least(machine, &Limits { memory, ..Limits::default() });
            assert_eq!(found, expected.map(|(bytes, bound)| Free { bytes, bound }), "{available:?} {memory:?}");
        };
        check(Some(50), None, Some((50, Bound::Machine)));
        check(Some(50), Some((60, 20)), Some((40, Bound::ControlGroup)));
        check(Some(50), Some((90, 20)), Some((50, Bound::Machine)));
        check(Some(50), Some((10, 20)), Some((0, Bound::ControlGroup)));
        check(None, Some((10, 4)), Some((6, Bound::ControlGroup)));
        check(None, None, None);
    }
}
