//! The processor time of the machine.

/// Processor time of all cores together since the machine started, in ticks of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessorTime {
    /// All of it.
    pub total: u64,
    /// The part that no program used.
    pub idle: u64,
}

impl ProcessorTime {
    /// Reads the time; `None` if the kernel does not report it.
    pub fn gather() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// The first line has all cores: user, nice, system, idle, iowait, irq, softirq, steal, and guests, which are a part of
    /// user (proc_stat(5)). Time that a hypervisor took (steal) was not idle.
    fn parse(text: &str) -> Option<Self> {
        let ticks = text.lines().find_map(|line| line.strip_prefix("cpu "))?.split_whitespace().take(8);
        let ticks = ticks.map(|ticks| ticks.parse().ok()).collect::<Option<Vec<u64>>>()?;
        let total = ticks.iter().try_fold(0u64, |sum, ticks| sum.checked_add(*ticks))?;
        Some(ProcessorTime { total, idle: ticks.get(3)? + ticks.get(4)? })
    }

    /// The share of the time since an earlier reading that no program used, 0 to 1; `None` if no time has passed.
    pub fn idle_since(self, earlier: Self) -> Option<f64> {
        let total = self.total.checked_sub(earlier.total).filter(|total| *total > 0)?;
        // The kernel's sums of waiting for disks may decrease.
        Some(self.idle.saturating_sub(earlier.idle).min(total) as f64 / total as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        let check = |text: &str, expected: Option<(u64, u64)>| {
            let expected = expected.map(|(total, idle)| ProcessorTime { total, idle });
            assert_eq!(ProcessorTime::parse(text), expected, "{text}");
        };
        check("cpu  1 2 4 8 16 32 64 128 256 512\ncpu0 9 9 9 9 9\n", Some((255, 24)));
        check("cpu  1 2 4 8 16\n", Some((31, 24)));
        check("cpu  1 2 4 8\n", None);
        check("cpu0 1 2 4 8 16\n", None);
        check("cpu  1 2 4 x 16\n", None);
        check("cpu  18446744073709551615 2 4 8 16\n", None);
        check("", None);
    }

    #[test]
    fn idle_shares() {
        let check = |earlier: (u64, u64), later: (u64, u64), expected: Option<f64>| {
            let [earlier, later] = [earlier, later].map(|(total, idle)| ProcessorTime { total, idle });
            assert_eq!(later.idle_since(earlier), expected, "{earlier:?} {later:?}");
        };
        check((100, 50), (200, 75), Some(0.25));
        check((100, 50), (200, 150), Some(1.0));
        check((100, 50), (200, 49), Some(0.0));
        check((100, 50), (100, 50), None);
        check((100, 50), (99, 50), None);
    }
}
