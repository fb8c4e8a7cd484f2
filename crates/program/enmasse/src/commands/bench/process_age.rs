//! The age of this process, for the time from its start to the first step.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The time since this process started, in steps of 10 ms; `None` if the kernel does not say.
pub fn process_age() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name in parentheses may contain anything. The start time, in ticks since boot, is the 20th field after it.
    let ticks: f64 = text.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let now = clock_gettime(ClockId::Boottime);
    let started = ticks / rustix::param::clock_ticks_per_second() as f64;
    Duration::try_from_secs_f64(now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9 - started).ok()
}
