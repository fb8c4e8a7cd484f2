//! The memory of the machine.

/// Sizes from `/proc/meminfo`, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemInfo {
    /// The whole memory.
    pub total: u64,
    /// The part that programs can have without swapping.
    pub available: u64,
    /// Swap space.
    pub swap: u64,
}

impl MemInfo {
    /// Reads the sizes; `None` if the kernel does not report them.
    pub fn gather() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/meminfo").ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let bytes = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
        };
        let total = bytes("MemTotal")?;
        // Kernels before 3.14 lack MemAvailable.
        let available = bytes("MemAvailable").or_else(|| bytes("MemFree"))?;
        Some(MemInfo { total, available, swap: bytes("SwapTotal").unwrap_or(0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let check = |text: &str, expected: Option<[u64; 3]>| {
            let expected = expected.map(|[total, available, swap]| MemInfo { total, available, swap });
            assert_eq!(MemInfo::parse(text), expected, "{text}");
        };
        check(
            "MemTotal:       100 kB\nMemFree: 5 kB\nMemAvailable:    50 kB\nSwapTotal: 1 kB\n",
            Some([102_400, 51_200, 1024]),
        );
        check("MemTotal: 100 kB\nMemFree: 5 kB\n", Some([102_400, 5120, 0]));
        check("MemTotal: 100 MB\nMemAvailable: 50 kB\n", None);
        check("MemTotal: 99999999999999999999 kB\nMemAvailable: 50 kB\n", None);
        check("MemTotal: 18446744073709551615 kB\nMemAvailable: 50 kB\n", None);
        check("", None);
    }
}
