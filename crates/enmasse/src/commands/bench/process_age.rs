//! The age of this process: how long it took from its start to a first step.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// How long ago this process was started, to a hundredth of a second; nothing where the kernel does not say.
pub fn process_age() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name in brackets may hold anything; the time of the start, in ticks since boot, is the 20th field after it.
    let ticks: f64 = text.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let now = clock_gettime(ClockId::Boottime);
    let started = ticks / rustix::param::clock_ticks_per_second() as f64;
    Duration::try_from_secs_f64(now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9 - started).ok()
}
