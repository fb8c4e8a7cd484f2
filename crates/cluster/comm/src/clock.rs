//! The clocks of the ranks, compared so that times of different machines can stand on one axis.
//!
//! Ranks of one machine read one clock (CLOCK_MONOTONIC). Between machines the difference is bounded by messages: what a
//! rank receives was sent before. Each all-gather gives both bounds, and the narrowest of many rounds remain.

use std::fs;
use std::sync::Arc;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

use crate::cause::Cause;
use crate::group::Group;

/// All-gathers of a comparison. On an idle network a few are enough; on a busy machine most are delayed.
const ROUNDS: usize = 64;

/// Attempts to read two clocks at the same time.
const ATTEMPTS: usize = 16;

/// This rank's clock: nanoseconds that go on alike in all processes of a machine.
#[derive(Clone, Debug)]
pub struct Clock {
    /// An instant, and the clock's time then.
    epoch: (Instant, i64),
    /// The clock's time at `epoch` is off by at most this.
    accuracy: i64,
    /// What all processes have in common that read the same clock; empty if unknown.
    machine: String,
}

/// How a rank's clock differs from that of rank 0, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffset {
    /// The rank's time less that of rank 0.
    pub ahead: i64,
    /// `ahead` is off by at most this.
    pub accuracy: i64,
}

/// A rank's readings of a round: before it sent, and after it had received.
type Reading = [i64; 2];

impl Clock {
    /// The clock of this machine.
    pub fn new() -> Self {
        let read = || {
            let before = Instant::now();
            let time = clock_gettime(ClockId::Monotonic);
            let after = Instant::now();
            let nanoseconds = time.tv_sec * 1_000_000_000 + time.tv_nsec;
            ((before, nanoseconds), (after - before).as_nanos() as i64)
        };
        // A thread that does not run between the readings spoils them.
        let tries = (1..ATTEMPTS).map(|_| read());
        let (epoch, accuracy) = tries.fold(read(), |best, next| if next.1 < best.1 { next } else { best });
        Clock { epoch, accuracy, machine: machine() }
    }

    /// The clock's time at an instant, in nanoseconds.
    pub fn at(&self, instant: Instant) -> i64 {
        let (epoch, time) = self.epoch;
        match instant.checked_duration_since(epoch) {
            Some(later) => time + later.as_nanos() as i64,
            None => time - epoch.duration_since(instant).as_nanos() as i64,
        }
    }

    fn now(&self) -> i64 {
        self.at(Instant::now())
    }
}

impl Default for Clock {
    fn default() -> Self {
        Clock::new()
    }
}

/// The boot of the machine, and the namespace of clocks within it.
fn machine() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let namespace = fs::read_link("/proc/self/ns/time").map(|link| link.display().to_string());
    match (boot, namespace) {
        (Ok(boot), Ok(namespace)) => format!("{} {namespace}", boot.trim()),
        // A kernel without namespaces of clocks.
        (Ok(boot), Err(_)) => boot.trim().to_owned(),
        (Err(_), _) => String::new(),
    }
}

impl Group {
    /// How the clock of each rank differs from that of rank 0. All ranks call it, each with its own clock, and have the
    /// same result. Clocks of different machines drift apart, so the result holds for a short time.
    ///
    /// # Errors
    /// The group's [`Cause`]: a rank calls another operation, has failed or left, or comes too late.
    pub fn compare_clocks(&self, clock: &Clock) -> Result<Vec<ClockOffset>, Arc<Cause>> {
        let mut accuracies = vec![0; self.world_size()];
        self.all_gather(&[clock.accuracy], &mut accuracies)?;
        let machines = self.all_gather_bytes(clock.machine.as_bytes())?;
        let is_one = machines.iter().all(|machine| !machine.is_empty() && *machine == machines[0]);
        let offsets = if is_one {
            vec![ClockOffset { ahead: 0, accuracy: 0 }; machines.len()]
        } else {
            best_of_machines(&compare(&self.read_clocks(clock)?), &machines)
        };
        let accuracy = |rank: usize| accuracies[rank] + accuracies[0];
        let offset = |(rank, found): (usize, ClockOffset)| match rank {
            0 => ClockOffset { ahead: 0, accuracy: 0 },
            _ => ClockOffset { accuracy: found.accuracy + accuracy(rank), ..found },
        };
        Ok(offsets.into_iter().enumerate().map(offset).collect())
    }

    /// The readings of each rank, `[ranks][rounds]`.
    fn read_clocks(&self, clock: &Clock) -> Result<Vec<Vec<Reading>>, Arc<Cause>> {
        let mut own = Vec::with_capacity(2 * ROUNDS);
        let mut others = vec![0; self.world_size()];
        for _ in 0..ROUNDS {
            let before = clock.now();
            self.all_gather(&[before], &mut others)?;
            own.extend([before, clock.now()]);
        }
        let mut all = vec![0; own.len() * self.world_size()];
        self.all_gather(&own, &mut all)?;
        Ok(all.chunks_exact(own.len()).map(|readings| readings.as_chunks().0.to_vec()).collect())
    }
}

/// The difference of each clock to the first, from the readings `[clocks][rounds]`.
///
/// Neither rank has received before the other has sent. So the difference is at least what this rank's clock showed
/// before less what the first rank's showed after, and at most the converse. The truth lies in every round's interval.
fn compare(readings: &[Vec<Reading>]) -> Vec<ClockOffset> {
    let of_rank = |rank: &Vec<Reading>| {
        let (mut low, mut high) = (i64::MIN, i64::MAX);
        for ([before, after], [first_before, first_after]) in rank.iter().zip(&readings[0]) {
            low = low.max(before - first_after);
            high = high.min(after - first_before);
        }
        // Clocks that drift meanwhile may leave a little less than nothing.
        ClockOffset { ahead: low.midpoint(high), accuracy: (high - low).unsigned_abs().div_ceil(2) as i64 }
    };
    readings.iter().map(of_rank).collect()
}

/// Ranks of one machine have one clock, so all take the narrowest comparison of their machine.
fn best_of_machines(offsets: &[ClockOffset], machines: &[Vec<u8>]) -> Vec<ClockOffset> {
    let best = |rank: usize| {
        let same = |other: &usize| *other == rank || (!machines[rank].is_empty() && machines[*other] == machines[rank]);
        let of_machine = (0..offsets.len()).filter(same);
        match of_machine.clone().next() {
            Some(0) => ClockOffset { ahead: 0, accuracy: 0 },
            _ => of_machine.map(|other| offsets[other]).min_by_key(|offset| offset.accuracy).unwrap_or(offsets[rank]),
        }
    };
    (0..offsets.len()).map(best).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_lies_in_every_round() {
        let check = |first: &[Reading], other: &[Reading], ahead: i64, accuracy: i64| {
            let found = compare(&[first.to_vec(), other.to_vec()]);
            assert_eq!(found[1], ClockOffset { ahead, accuracy }, "{first:?} {other:?}");
        };
        // Both enter together: the difference is known to the time of the exchange.
        check(&[[0, 10]], &[[100, 110]], 100, 10);
        // One comes late, or is late to notice.
        check(&[[0, 50]], &[[140, 150]], 120, 30);
        check(&[[0, 10]], &[[100, 170]], 130, 40);
        // The narrowest of both sides.
        check(&[[0, 50], [60, 70]], &[[140, 150], [165, 175]], 105, 10);
        check(&[[0, 2], [10, 90]], &[[-70, -30], [-60, 10]], -51, 21);
    }

    #[test]
    fn ranks_of_a_machine_share_the_best_comparison() {
        let check = |machines: &[&str], offsets: &[(i64, i64)], expected: &[(i64, i64)]| {
            let of = |pairs: &[(i64, i64)]| -> Vec<ClockOffset> {
                pairs.iter().map(|&(ahead, accuracy)| ClockOffset { ahead, accuracy }).collect()
            };
            let machines: Vec<_> = machines.iter().map(|name| name.as_bytes().to_vec()).collect();
            assert_eq!(best_of_machines(&of(offsets), &machines), of(expected));
        };
        check(&["a", "b", "b"], &[(0, 5), (90, 9), (80, 4)], &[(0, 0), (80, 4), (80, 4)]);
        check(&["a", "b", "a"], &[(0, 5), (90, 9), (3, 4)], &[(0, 0), (90, 9), (0, 0)]);
        // Unknown machines have nothing in common.
        check(&["", "", ""], &[(0, 5), (90, 9), (80, 4)], &[(0, 0), (90, 9), (80, 4)]);
    }

    #[test]
    fn clocks_of_different_machines_are_compared_by_messages() {
        let second = 1_000_000_000;
        let ranks = Group::threads(3).unwrap().into_iter().map(|group| {
            std::thread::spawn(move || {
                let mut clock = Clock::new();
                clock.machine = format!("machine {}", group.rank());
                clock.epoch.1 += group.rank() as i64 * second;
                (group.compare_clocks(&clock).unwrap(), group.compare_clocks(&Clock::new()).unwrap())
            })
        });
        let found: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect();
        assert!(found.iter().all(|ranks| *ranks == found[0]), "{found:?}");
        let (apart, together) = &found[0];
        for (rank, offset) in apart.iter().enumerate() {
            let wrong = (offset.ahead - rank as i64 * second).abs();
            assert!(wrong <= offset.accuracy, "rank {rank}: {offset:?}");
        }
        assert!(together.iter().all(|offset| offset.ahead == 0), "{together:?}");
    }

    #[test]
    fn instants_as_times_of_the_clock() {
        let (before, clock) = (Instant::now(), Clock::new());
        let time = clock.now();
        let later = clock_gettime(ClockId::Monotonic);
        let later = later.tv_sec * 1_000_000_000 + later.tv_nsec;
        assert!(clock.at(before) < time && time <= later + clock.accuracy, "{clock:?}");
    }
}
