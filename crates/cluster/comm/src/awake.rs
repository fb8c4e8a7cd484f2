//! Time that an observer of others has missed.
//!
//! A process that was stopped and continued (SIGSTOP, a frozen container, a suspended job) finds
//! every deadline passed, although it has heard and seen nothing of the others meanwhile. It must
//! not blame them for that. So every thread that observes looks at the clock at regular intervals,
//! and does not count an interval in which it did not run itself. A job that is frozen as a whole
//! goes on, and a single frozen rank is named after the heartbeat (`--heartbeat`).
//!
//! The leases of elastic jobs are the exception: they keep attempts apart by real time.

use std::time::{Duration, Instant};

/// The looks of one thread at the clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Awake {
    looked: Instant,
    /// Longest interval between two looks of a thread that runs.
    most: Duration,
}

impl Awake {
    /// A thread that looks first at `now`, and again after `most` at the latest.
    pub(crate) fn new(most: Duration, now: Instant) -> Self {
        Awake { looked: now, most }
    }

    /// Looks at the clock. Returns the time since the last look if the thread cannot have run meanwhile, otherwise zero:
    /// moments before it are to be moved forward by as much.
    pub(crate) fn missed(&mut self, now: Instant) -> Duration {
        let interval = now.saturating_duration_since(std::mem::replace(&mut self.looked, now));
        if interval > self.most { interval } else { Duration::ZERO }
    }
}

/// How long another rank has sent nothing, as far as this one could hear it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silence {
    heard: Instant,
    limit: Duration,
    awake: Awake,
}

impl Silence {
    /// Begins at `now`. The listener looks four times within `limit`.
    pub(crate) fn new(limit: Duration, now: Instant) -> Self {
        // Twice the usual interval, since a busy machine runs the listener late.
        Silence { heard: now, limit, awake: Awake::new(limit / 2, now) }
    }

    /// The other rank has sent something.
    pub(crate) fn broken(&mut self, now: Instant) {
        self.heard = now;
    }

    /// Whether the silence has lasted for the limit.
    pub(crate) fn is_over_limit(&mut self, now: Instant) -> bool {
        self.heard = (self.heard + self.awake.missed(now)).min(now);
        now.saturating_duration_since(self.heard) >= self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happens at a moment, in seconds.
    enum At {
        /// The listener looks.
        Look(u64),
        /// A heartbeat is read.
        Heard(u64),
    }
    use At::{Heard, Look};

    #[test]
    fn only_a_listener_that_was_awake_decides() {
        let origin = Instant::now();
        // A limit of eight seconds, so a look every two. The result is when the other rank is taken for silent.
        let check = |name: &str, events: &[At], expected: Option<u64>| {
            let mut silence = Silence::new(Duration::from_secs(8), origin);
            let decided = events.iter().find_map(|event| match *event {
                Look(second) => silence.is_over_limit(origin + Duration::from_secs(second)).then_some(second),
                Heard(second) => {
                    silence.broken(origin + Duration::from_secs(second));
                    None
                }
            });
            assert_eq!(decided, expected, "{name}");
        };
        check("silent from the start", &[Look(2), Look(4), Look(6), Look(8)], Some(8));
        check("heard once", &[Look(2), Heard(3), Look(4), Look(6), Look(8), Look(10), Look(12)], Some(12));
        check("looks that are late, but not too late", &[Look(4), Look(8)], Some(8));
        check("all stopped for a second longer than the limit", &[Look(2), Look(11), Heard(12), Look(13)], None);
        check("all stopped for a day", &[Heard(1), Look(2), Look(86_400), Heard(86_401), Look(86_402)], None);
        check("stopped again and again", &[Look(2), Look(9), Look(11), Look(18), Heard(19), Look(20)], None);
        check("one does not come back", &[Look(2), Look(102), Look(104), Look(106), Look(108)], Some(108));
        check("stopped for less than the limit", &[Look(2), Look(7), Look(9), Look(11), Look(13)], Some(13));
    }
}
