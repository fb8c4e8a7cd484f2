//! Broadcasts along the tree of nodes, over links in memory, with ranks that freeze or die at each step of it.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use proptest::prelude::*;

use super::{HierarchicalTransport, Links, Peer, SegmentSizes};
use crate::binomial::parent;
use crate::failure::Failure;
use crate::flight::FlightRecorder;
use crate::group::GroupState;
use crate::operation::{HEADER_BYTES, Identity};
use crate::rendezvous::form::Connectivity;
use crate::topology::Topology;
use crate::traffic::Traffic;
use crate::transport::region::Region;
use crate::transport::{DIRECT_BYTES, Members};
use crate::{Cause, CauseKind, Group, GroupEvent, GroupOptions};

/// Far longer than any of these tests needs.
const DEADLINE: Duration = Duration::from_secs(60);
/// Bytes of a chunk where every rank is a node.
const CHUNK: usize = 1000;

/// A rank's links to all others.
struct Post {
    rank: usize,
    /// Whole messages, with their senders. An empty one is the last: its sender is dead.
    inbox: Receiver<(usize, Vec<u8>)>,
    outboxes: Vec<Sender<(usize, Vec<u8>)>>,
    /// What has come, by sender.
    come: Vec<VecDeque<Vec<u8>>>,
    taken: usize,
    traffic: Traffic,
    fate: Option<Fate>,
}

/// What happens to a rank once it has taken so many messages.
struct Fate {
    after: usize,
    dies: bool,
    /// Ends, without a message, with the test.
    end: Receiver<()>,
}

impl Post {
    fn meet_fate(&mut self) -> Result<(), (usize, io::Error)> {
        let Some(fate) = self.fate.take_if(|fate| self.taken >= fate.after) else { return Ok(()) };
        if fate.dies {
            // Those that have ended need not hear of it.
            self.outboxes.iter().for_each(|outbox| drop(outbox.send((self.rank, vec![]))));
        }
        let _ = fate.end.recv();
        Err((self.rank, io::Error::other("this rank has met its fate")))
    }
}

impl Links for Post {
    fn progress(&mut self, peers: &mut [Peer]) -> Result<(), (usize, io::Error)> {
        while let Ok((from, message)) = self.inbox.try_recv() {
            self.come[from].push_back(message);
        }
        for Peer { rank, sending, receiving, .. } in peers {
            while let Some(bytes) = receiving.get(0) {
                self.meet_fate()?;
                let Some(message) = self.come[*rank].pop_front() else { break };
                if message.is_empty() {
                    return Err((*rank, io::ErrorKind::UnexpectedEof.into()));
                }
                assert_eq!(message.len(), bytes.len);
                // SAFETY: guaranteed by the caller of `Queue::begin`.
                unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), bytes.start, bytes.len) };
                receiving.advance(bytes.len);
                self.traffic.received += bytes.len as u64;
                self.taken += 1;
            }
            while let Some(bytes) = sending.get(0) {
                self.meet_fate()?;
                // SAFETY: as above.
                let message = unsafe { std::slice::from_raw_parts(bytes.start, bytes.len) }.to_vec();
                // The other rank may have given up.
                let _ = self.outboxes[*rank].send((self.rank, message));
                sending.advance(bytes.len);
                self.traffic.sent += bytes.len as u64;
            }
        }
        Ok(())
    }

    fn sleep(&mut self, peers: &[Peer], limit: Duration) -> bool {
        let waits = peers.iter().any(|peer| !peer.receiving.is_complete());
        if waits && let Ok((from, message)) = self.inbox.recv_timeout(limit) {
            self.come[from].push_back(message);
        }
        waits
    }

    fn close(&mut self, _: &mut [Peer], _: bool, _: &Failure, _: Duration) {}

    fn keeps_memory(&self) -> bool {
        false
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn segments(&self) -> SegmentSizes {
        SegmentSizes { direct: DIRECT_BYTES, chunk: CHUNK }
    }

    fn buffer_bytes(&self) -> usize {
        0
    }
}

/// A group whose ranks are on these nodes, and what happens to one of them.
fn groups(topology: &Topology, timeout: Duration, mut fate: Option<(usize, Fate)>) -> Vec<Group> {
    let ranks = topology.nodes().iter().map(Vec::len).sum();
    let failure = Arc::<Failure>::default();
    let region = |node| Region::private(HierarchicalTransport::layout(topology, node)).map(Arc::new).unwrap();
    let regions: Vec<_> = (0..topology.nodes().len()).map(region).collect();
    let (outboxes, inboxes): (Vec<_>, Vec<_>) = (0..ranks).map(|_| channel()).unzip();
    let group = |(rank, inbox): (usize, Receiver<(usize, Vec<u8>)>)| {
        let come = vec![VecDeque::new(); ranks];
        let fate = fate.take_if(|(of, _)| *of == rank).map(|(_, fate)| fate);
        let outboxes = outboxes.clone();
        let post = Post { rank, inbox, outboxes, come, taken: 0, traffic: Traffic::default(), fate };
        let members = Members::of_job(rank, ranks, Identity::default());
        let region = regions[topology.node_of(rank)].clone();
        let transport = HierarchicalTransport::new(members.clone(), topology.clone(), region, Box::new(post)).unwrap();
        let options = GroupOptions { timeout, stall_warning: timeout, ..GroupOptions::default() };
        let connectivity = Connectivity::within_process();
        let group_state = GroupState::new(failure.clone(), FlightRecorder::default(), options, connectivity, None);
        Group::new((members, topology.clone()), Some(Box::new(transport)), vec![], group_state).unwrap()
    };
    inboxes.into_iter().enumerate().map(group).collect()
}

fn sent(len: usize, root: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + root) as u8).collect()
}

/// Each rank's part of a broadcast, and what it has sent and received then.
fn broadcast(group: &Group, len: usize, root: usize) -> Traffic {
    let mut data = if group.rank() == root { sent(len, root) } else { vec![0; len] };
    let before = group.traffic();
    group.broadcast(&mut data, root).unwrap();
    assert!(data == sent(len, root), "rank {} of {}, {len} bytes from {root}", group.rank(), group.world_size());
    group.traffic() - before
}

fn on_ranks<T: Send + 'static>(groups: Vec<Group>, run: impl Fn(Group) -> T + Copy + Send + 'static) -> Vec<T> {
    let ranks: Vec<_> = groups.into_iter().map(|group| thread::spawn(move || run(group))).collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn every_rank_gets_the_data_of_any(names in prop::collection::vec(0u8..6, 2..13), lens in prop::array::uniform2(0usize..5000)) {
        let topology = Topology::new(&names);
        if topology.nodes().len() > 1 {
            on_ranks(groups(&topology, DEADLINE, None), move |group| {
                (0..group.world_size()).zip(lens.into_iter().cycle()).for_each(|(root, len)| { broadcast(&group, len, root); });
                // Parts that differ take the same way.
                let mut part = [0u8; 9];
                group.scatter(&sent(9 * group.world_size(), 1), &mut part, 0).unwrap();
                assert_eq!(part[..], sent(9 * group.world_size(), 1)[9 * group.rank()..][..9]);
            });
        }
    }
}

#[test]
fn no_rank_sends_the_data_more_often_than_the_logarithm_of_the_nodes() {
    let len = 3 * CHUNK + 1;
    for ranks in [2, 3, 8, 13] {
        for root in [0, ranks - 1] {
            let traffic =
                on_ranks(groups(&Topology::apart(ranks), DEADLINE, None), move |group| broadcast(&group, len, root));
            let headers = (HEADER_BYTES * (ranks - 1)) as u64;
            for (rank, Traffic { sent, received }) in traffic.into_iter().enumerate() {
                let below = (0..ranks).filter(|&node| parent(node, root, ranks) == Some(rank)).count();
                assert!(below <= ranks.next_power_of_two().ilog2() as usize);
                let from_above = if rank == root { 0 } else { len };
                assert_eq!((sent - headers, received - headers), ((below * len) as u64, from_above as u64));
            }
        }
    }
}

/// A broadcast in which something happens to a rank.
struct Case {
    /// Dropped, it ends the rank to which something has happened.
    alive: Sender<()>,
    victim: JoinHandle<Cause>,
    others: Vec<JoinHandle<Cause>>,
}

/// Something happens to `victim` in a broadcast of three chunks, after so many of them.
fn case(ranks: usize, victim: usize, chunks: usize, dies: bool) -> Case {
    let (alive, end) = channel();
    // Each other rank's header comes first, to the barrier and to the broadcast.
    let fate = Fate { after: 2 * (ranks - 1) + chunks, dies, end };
    let groups = groups(&Topology::apart(ranks), Duration::from_secs(5), Some((victim, fate)));
    let is_leaf = (0..ranks).all(|node| parent(node, 0, ranks) != Some(victim));
    let run = move |group: Group| {
        let (events, heard) = channel();
        group.observe(move |event| {
            if let GroupEvent::Failed(cause) = event {
                // This thread may have ended.
                let _ = events.send((**cause).clone());
            }
        });
        // From here on all wait equally long.
        group.barrier().unwrap();
        let mut data = vec![0u8; 3 * CHUNK];
        // Nobody needs a leaf until the next operation.
        let _ = group.broadcast(&mut data, 0).and_then(|()| if is_leaf { group.barrier() } else { Ok(()) });
        heard.recv_timeout(DEADLINE).expect("a failure")
    };
    let mut others: Vec<_> = groups.into_iter().map(|group| thread::spawn(move || run(group))).collect();
    let victim = others.remove(victim);
    Case { alive, victim, others }
}

#[test]
fn a_rank_that_freezes_or_dies_at_any_step_is_named_by_all() {
    const RANKS: usize = 8;
    let events = (0..RANKS).flat_map(|victim| (0..=3).map(move |chunks| (victim, chunks)));
    // The sender takes nothing but headers.
    let events = events.filter(|&(victim, chunks)| victim > 0 || chunks == 0);
    let events = events.flat_map(|(victim, chunks)| [false, true].map(|dies| (victim, chunks, dies)));
    // All at once, since most of the time ranks wait.
    let cases: Vec<_> =
        events.map(|event @ (victim, chunks, dies)| (event, case(RANKS, victim, chunks, dies))).collect();
    for ((victim, chunks, dies), Case { alive, victim: own, others }) in cases {
        let kind = if dies { CauseKind::Exited } else { CauseKind::Timeout };
        let mut causes: Vec<_> = others.into_iter().map(|rank| rank.join().unwrap()).collect();
        drop(alive);
        causes.push(own.join().unwrap());
        for cause in causes {
            assert_eq!((cause.kind, cause.rank), (kind, Some(victim)), "after {chunks} chunks: {cause}");
        }
    }
}
