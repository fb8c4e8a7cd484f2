//! A sum of two ranks over a connection that takes the values of one of them only after those of the other have come.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use std::{io, ptr, slice, thread};

use super::{HierarchicalTransport, Links, Peer};
use crate::failure::Failure;
use crate::flight::FlightRecorder;
use crate::group::Ties;
use crate::operation::Identity;
use crate::rendezvous::form::Reach;
use crate::topology::Topology;
use crate::transport::region::Region;
use crate::transport::{DIRECT_BYTES, Members};
use crate::{Group, GroupOptions};

/// One end of a connection between threads, which carries whole messages.
struct End {
    to: Sender<Vec<u8>>,
    from: Receiver<Vec<u8>>,
    /// A slow end takes the header at once, and the rest when its rank has nothing else to wait for.
    is_slow: bool,
}

impl Links for End {
    fn progress(&mut self, peers: &mut [Peer]) -> Result<(), (usize, io::Error)> {
        for Peer { sending, receiving, .. } in peers {
            while let Some(bytes) = receiving.get(0)
                && let Ok(message) = self.from.try_recv()
            {
                assert_eq!(message.len(), bytes.len);
                // SAFETY: guaranteed by the caller of `Queue::begin`.
                unsafe { ptr::copy_nonoverlapping(message.as_ptr(), bytes.start, bytes.len) };
                receiving.advance(bytes.len);
            }
            while let Some(bytes) = sending.get(0)
                && (!self.is_slow || sending.complete() == 0)
            {
                // SAFETY: as above.
                let message = unsafe { slice::from_raw_parts(bytes.start, bytes.len) }.to_vec();
                self.to.send(message).expect("the other rank waits for it");
                sending.advance(bytes.len);
            }
        }
        Ok(())
    }

    fn sleep(&mut self, peers: &[Peer], _: Duration) -> bool {
        self.is_slow &= !peers.iter().all(|peer| peer.receiving.is_complete());
        thread::yield_now();
        true
    }

    fn close(&mut self, _: &mut [Peer], _: bool, _: &Failure, _: Duration) {}

    fn keeps_memory(&self) -> bool {
        false
    }
}

/// A sum of up to 8 KiB once replaced the values of a rank before all of them had been sent.
#[test]
fn a_short_sum_waits_until_the_own_values_have_been_sent() {
    for count in [1, DIRECT_BYTES / size_of::<f32>()] {
        let failure = Arc::<Failure>::default();
        let ((to_1, from_0), (to_0, from_1)) = (channel(), channel());
        let ends = [End { to: to_1, from: from_1, is_slow: true }, End { to: to_0, from: from_0, is_slow: false }];
        let ranks = ends.into_iter().enumerate().map(|(rank, end)| {
            let (members, topology) = (Members::of_job(rank, 2, Identity::default()), Topology::apart(2));
            let region = Region::private(HierarchicalTransport::layout(&topology, rank)).unwrap();
            let transport =
                HierarchicalTransport::new(members.clone(), topology, Arc::new(region), Box::new(end)).unwrap();
            let (options, reach) = (GroupOptions::default(), Reach::within_process());
            let ties = Ties::new(failure.clone(), FlightRecorder::default(), options, reach, None);
            let group = Group::new(members, Some(Box::new(transport)), vec![], ties).unwrap();
            thread::spawn(move || {
                let mut data = vec![1.0 + rank as f32; count];
                group.all_reduce(&mut data).map(|()| data)
            })
        });
        for rank in ranks.collect::<Vec<_>>() {
            assert_eq!(rank.join().unwrap().unwrap(), vec![3f32; count]);
        }
    }
}
