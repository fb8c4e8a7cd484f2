//! The least speed of a server: one that sends a byte now and then never ends, and never times out.

use std::time::{Duration, Instant};

/// Bytes that must arrive in each window of time.
const MIN: u64 = 64 << 10;

/// Counts what arrives.
pub(crate) struct Pace {
    window: Duration,
    began: Instant,
    bytes: u64,
}

impl Pace {
    pub fn new(window: Duration, now: Instant) -> Self {
        Pace { window, began: now, bytes: 0 }
    }

    /// Takes in bytes that have arrived at `now`. False if the window that ends here had too few.
    pub fn goes_on(&mut self, bytes: u64, now: Instant) -> bool {
        self.bytes += bytes;
        if now.saturating_duration_since(self.began) < self.window {
            return true;
        }
        let enough = self.bytes >= MIN;
        *self = Pace::new(self.window, now);
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_now_and_then_is_too_slow() {
        let began = Instant::now();
        let mut pace = Pace::new(Duration::from_secs(30), began);
        let mut check = |second: u64, bytes: u64, expected: bool| {
            assert_eq!(pace.goes_on(bytes, began + Duration::from_secs(second)), expected, "{second}");
        };
        check(1, 1, true);
        check(29, MIN, true);
        // A window ends with enough; the next one begins there, with nothing.
        check(31, 1, true);
        check(60, 1, true);
        check(61, 1, false);
        check(90, MIN - 1, true);
        check(91, 1, true);
        check(121, MIN - 1, false);
    }
}
