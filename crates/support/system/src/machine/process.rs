//! The memory of this process, as counted by the kernel.

/// The peak resident memory of this process, in bytes; 0 if the kernel does not report it.
pub fn peak_rss_bytes() -> u64 {
    status_bytes("VmHWM")
}

/// The resident memory of this process now, in bytes; 0 if the kernel does not report it.
pub fn resident_bytes() -> u64 {
    status_bytes("VmRSS")
}

fn status_bytes(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix(':')?;
        value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    kib.unwrap_or(0) * 1024
}
