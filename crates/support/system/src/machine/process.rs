//! The memory of this process, as counted by the kernel.

/// The peak resident memory of this process, in bytes; 0 if the kernel does not report it.
pub fn peak_rss_bytes() -> u64 {
    status_bytes("VmHWM")
}

/// The memory of this process that is resident, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResidentMemory {
    /// What no other process has.
    pub own: u64,
    /// Pages of files, such as the program itself, and memory that is shared with other processes.
    pub shared: u64,
}

impl ResidentMemory {
    /// The memory now; nothing if the kernel does not report it.
    pub fn gather() -> Self {
        let all = status_bytes("VmRSS");
        // Some sandboxes report the sum alone.
        let own = Some(status_bytes("RssAnon")).filter(|&own| own > 0).unwrap_or(all);
        ResidentMemory { own, shared: all.saturating_sub(own) }
    }

    /// All of it.
    pub fn bytes(self) -> u64 {
        self.own + self.shared
    }
}

fn status_bytes(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix(':')?;
        value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    kib.unwrap_or(0) * 1024
}
