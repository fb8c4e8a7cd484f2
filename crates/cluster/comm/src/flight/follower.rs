//! Copies of a recorder's operations with their exact times, for timelines. The recorder itself keeps only the latest.

use std::time::Instant;

use super::{CAPACITY, Entry, FlightRecorder, Recorded, place};
use crate::locks::lock;

/// An operation that has ended, and when.
#[derive(Clone, Copy, Debug)]
pub struct TimedOperation {
    what: Recorded,
    /// Bytes of one rank's part.
    pub bytes: usize,
    /// Whether its caller went on, to wait for it later.
    pub in_background: bool,
    /// When the rank requested it.
    pub queued: Instant,
    /// When its turn came.
    pub started: Instant,
    /// When it was done.
    pub ended: Instant,
    /// From when to when its caller waited for it; `None` if it did not have to.
    pub awaited: Option<[Instant; 2]>,
}

impl TimedOperation {
    fn of(entry: &Entry) -> Option<Self> {
        let &Entry { what, bytes, in_background, queued, started, ended, awaited } = entry;
        let (started, ended) = (started?, ended?);
        // Any other caller waits from the start to the end.
        let awaited = if in_background { awaited } else { Some([queued, ended]) };
        Some(TimedOperation { what, bytes, in_background, queued, started, ended, awaited })
    }

    /// Its description, such as `all_reduce(sum) of 1000 f32`.
    pub fn description(&self) -> String {
        self.what.describe().1
    }

    /// Its number in its group, from 1; watched operations are numbered separately.
    pub fn sequence(&self) -> u64 {
        self.what.describe().0
    }
}

/// Copies the operations of a recorder, at times that its owner chooses, into memory that was allocated at the start.
#[derive(Debug)]
pub struct FlightFollower {
    recorder: FlightRecorder,
    /// The operations before this one, by their numbers in the record, are copied or left out.
    next: u64,
    operations: Vec<TimedOperation>,
    capacity: usize,
    lost: u64,
}

impl FlightRecorder {
    /// A follower that has room for this many operations, beginning with those that are recorded from now on.
    pub fn follow(&self, capacity: usize) -> FlightFollower {
        let (next, operations) = (lock(&self.flight).queued + 1, Vec::with_capacity(capacity));
        FlightFollower { recorder: self.clone(), next, operations, capacity, lost: 0 }
    }
}

impl FlightFollower {
    /// Leaves out what was recorded since the last call.
    pub fn skip(&mut self) {
        self.next = lock(&self.recorder.flight).queued + 1;
    }

    /// Copies what was recorded since the last call, up to the first operation that has not ended. Allocates nothing.
    pub fn collect(&mut self) {
        let flight = lock(&self.recorder.flight);
        let oldest = (flight.queued + 1).saturating_sub(CAPACITY as u64).max(1);
        self.lost += oldest.saturating_sub(self.next);
        self.next = self.next.max(oldest);
        while self.next <= flight.queued {
            let Some(operation) = TimedOperation::of(&flight.ring[place(self.next)]) else { return };
            if self.operations.len() < self.capacity {
                self.operations.push(operation);
            } else {
                self.lost += 1;
            }
            self.next += 1;
        }
    }

    /// The copied operations, in the order in which they were queued.
    pub fn operations(&self) -> &[TimedOperation] {
        &self.operations
    }

    /// Operations for which there was no room, or that the recorder no longer had.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{Kind, Operation};

    /// Records an operation of `count` values, as far as `ended` says, and returns its number.
    fn record(recorder: &FlightRecorder, count: usize, ended: bool) -> u64 {
        let nothing = std::ptr::NonNull::<f32>::dangling().as_ptr();
        let operation = Operation { sequence: 7, ..Operation::new(Kind::AllReduce, nothing, nothing, count) };
        let number = recorder.queued(&operation, true);
        recorder.started(number);
        if ended {
            recorder.ended(number);
        }
        number
    }

    fn counts(follower: &FlightFollower) -> Vec<usize> {
        follower.operations().iter().map(|operation| operation.bytes / 4).collect()
    }

    #[test]
    fn operations_are_copied_once_they_have_ended() {
        let recorder = FlightRecorder::default();
        record(&recorder, 1, true);
        let mut follower = recorder.follow(9);
        record(&recorder, 2, true);
        let open = record(&recorder, 3, false);
        record(&recorder, 4, true);
        follower.collect();
        assert_eq!(counts(&follower), [2]);
        recorder.ended(open);
        recorder.awaited(open, Instant::now());
        follower.collect();
        assert_eq!(counts(&follower), [2, 3, 4]);
        record(&recorder, 5, true);
        follower.skip();
        record(&recorder, 6, true);
        follower.collect();
        assert_eq!((counts(&follower), follower.lost()), (vec![2, 3, 4, 6], 0));
        let [_, third, ..] = follower.operations() else { panic!("four operations") };
        assert_eq!((third.description().as_str(), third.sequence()), ("all_reduce(sum) of 3 f32", 7));
        let [from, to] = third.awaited.unwrap();
        assert!([third.queued, third.started, third.ended, from, to].is_sorted());
        assert_eq!(follower.operations()[0].awaited, None);
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let recorder = FlightRecorder::default();
        let mut follower = recorder.follow(2);
        for count in 1..=3 {
            record(&recorder, count, true);
        }
        follower.collect();
        assert_eq!((counts(&follower), follower.lost()), (vec![1, 2], 1));
        // The recorder has overwritten one that was not copied in time.
        let mut late = recorder.follow(CAPACITY);
        for count in 0..=CAPACITY {
            record(&recorder, count, true);
        }
        late.collect();
        assert_eq!((late.operations().len(), late.lost()), (CAPACITY, 1));
    }
}
