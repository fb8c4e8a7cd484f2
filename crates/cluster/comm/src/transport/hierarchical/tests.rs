//! Sums of two ranks over connections that are slow or break.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{io, ptr, slice, thread};

use super::{HierarchicalTransport, Links, Peer, SLOT_BYTES, SegmentSizes};
use crate::failure::Failure;
use crate::flight::FlightRecorder;
use crate::group::GroupState;
use crate::operation::Identity;
use crate::rendezvous::form::Connectivity;
use crate::topology::Topology;
use crate::traffic::Traffic;
use crate::transport::region::Region;
use crate::transport::{DIRECT_BYTES, Members};
use crate::{Group, GroupOptions};

/// One end of a connection between threads, which carries whole messages.
struct End {
    to: Sender<Vec<u8>>,
    from: Receiver<Vec<u8>>,
    manner: Manner,
    /// Whether each message that came went to memory that outlives its operation.
    lasting: Arc<Mutex<Vec<bool>>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    Fast,
    /// Takes the header at once, and the rest when its rank has nothing else to wait for.
    Slow,
    /// Breaks after the header, and may still write to what it was to receive.
    Breaking,
}

impl Links for End {
    fn progress(&mut self, peers: &mut [Peer]) -> Result<(), (usize, io::Error)> {
        for Peer { sending, receiving, .. } in peers {
            if self.manner == Manner::Breaking && receiving.complete() > 0 && !receiving.is_complete() {
                return Err((1, io::Error::other("it is cut")));
            }
            while let Some(bytes) = receiving.get(0)
                && let Ok(message) = self.from.try_recv()
            {
                assert_eq!(message.len(), bytes.len);
                self.lasting.lock().unwrap().push(bytes.is_lasting);
                // SAFETY: guaranteed by the caller of `Queue::begin`.
                unsafe { ptr::copy_nonoverlapping(message.as_ptr(), bytes.start, bytes.len) };
                receiving.advance(bytes.len);
            }
            while let Some(bytes) = sending.get(0)
                && (self.manner != Manner::Slow || sending.complete() == 0)
            {
                // SAFETY: as above.
                let message = unsafe { slice::from_raw_parts(bytes.start, bytes.len) }.to_vec();
                // The other rank may have given up.
                let _ = self.to.send(message);
                sending.advance(bytes.len);
            }
        }
        Ok(())
    }

    fn sleep(&mut self, peers: &[Peer], _: Duration) -> bool {
        if self.manner == Manner::Slow && peers.iter().all(|peer| peer.receiving.is_complete()) {
            self.manner = Manner::Fast;
        }
        thread::yield_now();
        true
    }

    fn close(&mut self, _: &mut [Peer], _: bool, _: &Failure, _: Duration) {}

    fn keeps_memory(&self) -> bool {
        self.manner == Manner::Breaking
    }

    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    fn segments(&self) -> SegmentSizes {
        SegmentSizes { direct: DIRECT_BYTES, chunk: SLOT_BYTES }
    }

    fn buffer_bytes(&self) -> usize {
        0
    }
}

/// Two ranks, the first of which has a connection of this manner, and what it notes of the messages that come.
fn pair(manner: Manner) -> ([Group; 2], Arc<Mutex<Vec<bool>>>) {
    let failure = Arc::<Failure>::default();
    let lasting = Arc::<Mutex<Vec<bool>>>::default();
    let ((to_1, from_0), (to_0, from_1)) = (channel(), channel());
    let ends = [
        End { to: to_1, from: from_1, manner, lasting: lasting.clone() },
        End { to: to_0, from: from_0, manner: Manner::Fast, lasting: Arc::default() },
    ];
    let mut rank = 0..2;
    let groups = ends.map(|end| {
        let rank = rank.next().unwrap();
        let members = Members::of_job(rank, 2, Identity::default());
        let topology = Topology::apart(2);
        let region = Region::private(HierarchicalTransport::layout(&topology, rank)).unwrap();
        let transport =
            HierarchicalTransport::new(members.clone(), topology.clone(), Arc::new(region), Box::new(end)).unwrap();
        let options = GroupOptions::default();
        let connectivity = Connectivity::within_process();
        let group_state = GroupState::new(failure.clone(), FlightRecorder::default(), options, connectivity, None);
        Group::new((members, topology), Some(Box::new(transport)), vec![], group_state).unwrap()
    });
    (groups, lasting)
}

/// The sum of as many values of both ranks, on a thread.
fn sum(group: Group, count: usize) -> JoinHandle<Option<Vec<f32>>> {
    thread::spawn(move || {
        let mut data = vec![1.0 + group.rank() as f32; count];
        group.all_reduce(&mut data).is_ok().then_some(data)
    })
}

/// A sum of up to 8 KiB once replaced the values of a rank before all of them had been sent.
#[test]
fn a_short_sum_waits_until_the_own_values_have_been_sent() {
    for count in [1, DIRECT_BYTES / size_of::<f32>()] {
        let (groups, _) = pair(Manner::Slow);
        for rank in groups.map(|group| sum(group, count)) {
            assert_eq!(rank.join().unwrap(), Some(vec![3f32; count]));
        }
    }
}

#[test]
fn sums_arrive_in_lent_memory() {
    const COUNT: usize = 10_000;
    // Where the header, the other rank's values and the sum of the other half go.
    let check = |registers: bool, from: usize, expected: [bool; 3]| {
        let ([first, second], lasting) = pair(Manner::Fast);
        let other = sum(second, COUNT);
        let mut memory = Arc::new(vec![0f32; COUNT + 8]);
        let start = Arc::get_mut(&mut memory).unwrap().as_mut_ptr();
        if registers {
            // SAFETY: the vector owns these bytes, and nothing changes its length.
            unsafe { first.register_memory(&memory, start.cast(), (COUNT + 8) * size_of::<f32>()) };
        }
        // SAFETY: it ends within the memory, where its user has room for it, and nothing else uses it.
        let data = unsafe { slice::from_raw_parts_mut(start.wrapping_add(from), COUNT) };
        data.fill(1.0);
        first.all_reduce(data).unwrap();
        assert!(data.iter().all(|&value| value == 3.0));
        assert_eq!(other.join().unwrap().map(|sum| sum.len()), Some(COUNT));
        assert_eq!(*lasting.lock().unwrap(), expected, "{registers} {from}");
        drop(first);
        assert_eq!(Arc::strong_count(&memory), 1);
    };
    check(false, 0, [true, true, false]);
    check(true, 0, [true, true, true]);
    check(true, 8, [true, true, true]);
}

/// What is still on its way when an operation fails may arrive after the caller has freed its memory.
#[test]
fn lent_memory_outlives_a_failed_operation() {
    const COUNT: usize = 10_000;
    let check = |registers: bool, expected: usize| {
        let ([first, second], _) = pair(Manner::Breaking);
        let other = sum(second, COUNT);
        let mut memory = Arc::new(vec![0f32; COUNT]);
        let start = Arc::get_mut(&mut memory).unwrap().as_mut_ptr();
        if registers {
            // SAFETY: the vector owns these bytes, and nothing changes its length.
            unsafe { first.register_memory(&memory, start.cast(), COUNT * size_of::<f32>()) };
        }
        // SAFETY: nothing else uses the memory.
        let data = unsafe { slice::from_raw_parts_mut(start, COUNT) };
        let cause = first.all_reduce(data).unwrap_err();
        assert!(cause.message.contains("it is cut"), "{cause}");
        assert_eq!(other.join().unwrap(), None);
        drop(first);
        let kept = Arc::downgrade(&memory);
        drop(memory);
        assert_eq!(kept.strong_count(), expected, "{registers}");
    };
    check(false, 0);
    check(true, 1);
}
