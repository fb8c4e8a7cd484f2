//! Whether the kernel killed a process because memory ran out. It counts such kills, per control group and for the
//! machine.

use enmasse_system::machine::Limits;

/// The counts before the ranks start.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryKills {
    /// For this process's control group, which contains the ranks too.
    group: Option<u64>,
    machine: Option<u64>,
}

impl MemoryKills {
    pub(crate) fn so_far() -> Self {
        let machine = std::fs::read_to_string("/proc/vmstat").ok();
        MemoryKills { group: Limits::gather().killed_for_memory, machine: machine.and_then(|text| kills(&text)) }
    }

    /// Whether a process was killed since; `None` if the kernel does not tell.
    pub(crate) fn any_since(&self) -> Option<bool> {
        self.any_until(&Self::so_far())
    }

    /// Compares the counts before and after. A kill anywhere on the machine may have hit one of the ranks, unless the
    /// count of their group, which includes them, says otherwise.
    fn any_until(&self, now: &Self) -> Option<bool> {
        match (self.group.zip(now.group), self.machine.zip(now.machine)) {
            (Some((before, now)), _) => Some(now > before),
            (None, Some((before, now))) if now == before => Some(false),
            _ => None,
        }
    }
}

/// The count in the text of `vmstat`.
fn kills(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")).and_then(|count| count.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        let check = |text: &str, expected: Option<u64>| assert_eq!(kills(text), expected, "{text}");
        check("pgmajfault 12\noom_kill 3\nnuma_pte_updates 0\n", Some(3));
        check("oom_kill x\n", None);
        check("", None);
    }

    #[test]
    fn decisions() {
        let check = |group: Option<(u64, u64)>, machine: Option<(u64, u64)>, expected| {
            let (group, group_now) = group.unzip();
            let (machine, machine_now) = machine.unzip();
            let before = MemoryKills { group, machine };
            let now = MemoryKills { group: group_now, machine: machine_now };
            assert_eq!(before.any_until(&now), expected, "{before:?} {now:?}");
        };
        check(Some((1, 2)), None, Some(true));
        check(Some((1, 1)), Some((1, 2)), Some(false));
        check(None, Some((5, 5)), Some(false));
        check(None, Some((5, 6)), None);
        check(None, None, None);
    }
}
