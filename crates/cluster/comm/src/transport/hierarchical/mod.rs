//! The transport between nodes: ranks of one node share memory, and every rank carries a part of what travels between
//! nodes, over TCP or MPI ([`Links`]).
//!
//! A node adds up the partial sums of its ranks wherever the tree over shards allows, so that between two nodes every byte
//! travels once, as if each node had one rank. [`Topology`] says which rank serves which part. A node may have one rank, so
//! this is also the plain transport over either.
//!
//! Data moves in chunks, and three chunks are in progress at a time: while one is on the wire, the next is added up. A wait
//! for a rank of the node also lets the connections go on, since others may wait for what they carry. Within a node the
//! protocol is that of [`super::shared`]. Between nodes the header of an operation is the first message on every connection,
//! and data is accepted only if it is equal. No rank leaves an operation before all have entered it.

use std::io::{self, ErrorKind};
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::queue::Bytes;
use super::region::{Counters, Layout, Region, SLOTS};
use super::slot::Slot;
use super::{DIRECT_BYTES, Members, RunningOperation, SLEEP, SPIN, Stop, Transport, copy};
use crate::algorithm::Algorithm;
use crate::buffers::BufferBytes;
use crate::cause::CauseKind;
use crate::element::{Element, with_element};
use crate::failure::Failure;
use crate::locks::lock;
use crate::memory::{Mapping, MemoryOwner, RegisteredMemory};
use crate::net::record::Altered;
use crate::operation::{HEADER_BYTES, Header, Kind, Operation};
use crate::shards::PARTIALS_LIMIT;
use crate::sync::AtomicU64;
use crate::topology::Topology;
use crate::traffic::Traffic;

use peers::Peers;
pub(crate) use peers::{Links, Peer, SegmentSizes};

#[cfg(test)]
mod broadcast_tests;
mod compressed;
mod exchange;
mod gather;
mod peers;
mod reduce;
mod rounds;
pub(crate) mod sockets;
#[cfg(test)]
mod tests;

/// Bytes of a slot, and of what a chunk moves through slots. A rank's part of it, divided by the usual powers of two, leaves
/// room in TCP's segments for a tag, as a frame does.
pub(crate) const SLOT_BYTES: usize = 448 << 10;
/// What a rank adds up between two looks at its connections. Each look asks all of them, so one after each message would take the
/// square of their number in every chunk.
const LOOK_BYTES: usize = 128 << 10;
/// Chunks whose messages may be under way at a time.
const WINDOWS: usize = 2;
/// How long a rank that waits for a rank of its node sleeps at first while its connections have something to do: no call waits
/// for both.
const NAP: Duration = Duration::from_micros(100);
/// How long a rank that has noticed a failure waits for the better-informed cause from the control connection.
const GRACE: Duration = Duration::from_millis(500);

/// One rank's memory and connections.
pub(crate) struct HierarchicalTransport {
    members: Members,
    topology: Topology,
    /// Shared by the ranks of this node.
    region: Arc<Region>,
    /// The other ranks of this node, and their places in the region.
    local_peers: Vec<(usize, usize)>,
    /// This rank's place in the region.
    place: usize,
    peers: Peers,
    /// The place in `peers` of the rank that serves a channel on a node, by `node * channels + channel`.
    servers: Vec<Option<usize>>,
    /// The ranks of this node and the runs of ranks on others, in shard order: what this rank adds up.
    hosts: Vec<Host>,
    /// The index of each run's first partial sum among those of its node, in the current operation; and how many each node
    /// has.
    firsts: Vec<usize>,
    partials: Vec<usize>,
    /// This rank's header, and one from each peer. Like `scratch`, it may have to outlive the transport.
    headers: ManuallyDrop<Vec<[u8; HEADER_BYTES]>>,
    /// Room for partial sums, in each window those of this node and those of the others.
    scratch: ManuallyDrop<Mapping>,
    /// Bytes of a part of `scratch`.
    room: usize,
    segments: SegmentSizes,
    /// What has been registered, and the memory that the current operation receives into, if that is among it.
    registered: Vec<RegisteredMemory>,
    held: Option<MemoryOwner>,
    /// Number of chunks done in all operations; equal on all ranks of the node between operations.
    chunk: u64,
    are_more_than_cores: bool,
    /// Whether every operation so far is complete, so that the next bytes on all connections belong to a header.
    is_between: bool,
}

/// A host of partial sums, as seen from one node.
#[derive(Clone, Copy)]
enum Host {
    /// A rank of this node.
    LocalPeer(usize),
    /// A run of ranks on another node, by its number.
    Run(usize),
}

impl HierarchicalTransport {
    /// The layout of a node's memory.
    pub(crate) fn layout(topology: &Topology, node: usize) -> Layout {
        let ranks = topology.nodes()[node].len();
        let marks = topology.nodes().iter().map(Vec::len).sum();
        // A rank that is alone has nobody to stage data for.
        Layout { ranks, slot_bytes: if ranks > 1 { SLOT_BYTES } else { 0 }, marks }
    }

    /// `region` is the memory of this rank's node, with [`HierarchicalTransport::layout`]; `links` lead to all of its peers,
    /// in rank order.
    pub(crate) fn new(
        members: Members,
        topology: Topology,
        region: Arc<Region>,
        links: Box<dyn Links>,
    ) -> io::Result<Self> {
        let rank = members.rank;
        let node = topology.node_of(members.rank);
        let own = &topology.nodes()[node];
        let local_peers: Vec<_> = own
            .iter()
            .enumerate()
            .filter(|local_peer| *local_peer.1 != rank)
            .map(|(at, &local_peer)| (local_peer, at))
            .collect();
        let most = PARTIALS_LIMIT * topology.most_runs();
        let peers = Peers::new(topology.peers_of(rank), links, WINDOWS * (most + 2) + 4);
        let serves = |rank: usize, node, channel| {
            topology.node_of(rank) == node && topology.channels_of(rank).contains(&channel)
        };
        let servers = (0..topology.nodes().len() * topology.channels()).map(|at| {
            let node = at / topology.channels();
            let channel = at % topology.channels();
            peers.all.iter().position(|peer| serves(peer.rank, node, channel))
        });
        let hosts = topology.runs().iter().enumerate().flat_map(|(number, run)| {
            let is_own = run.node == node;
            let local_peers = run.ranks.clone().filter(move |_| is_own).map(Host::LocalPeer);
            local_peers.chain((!is_own).then_some(Host::Run(number)))
        });
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let is_staged = topology.nodes().iter().any(|node| node.len() > 1);
        let segments = peers.links.segments();
        let segments = if is_staged { SegmentSizes { chunk: SLOT_BYTES, ..segments } } else { segments };
        // Ranges are cut at cache lines, so their partial sums may exceed a chunk by a line each.
        let room = segments.chunk + topology.nodes().len() * most * 64;
        Ok(HierarchicalTransport {
            servers: servers.collect(),
            hosts: hosts.collect(),
            firsts: vec![0; topology.runs().len()],
            partials: vec![0; topology.nodes().len()],
            headers: ManuallyDrop::new(vec![[0; HEADER_BYTES]; 1 + peers.all.len()]),
            // Pages that no operation touches use no memory.
            scratch: ManuallyDrop::new(Mapping::private(2 * WINDOWS * room)?),
            room,
            segments,
            registered: Vec::new(),
            held: None,
            chunk: 0,
            are_more_than_cores: own.len() > cores,
            is_between: true,
            place: topology.place_of(rank),
            members,
            topology,
            region,
            local_peers,
            peers,
        })
    }

    /// The registered memory that the operation's output is in.
    fn registered_memory(&self, operation: &Operation) -> Option<MemoryOwner> {
        let ranks = self.members.world_size();
        let start = operation.output.addr();
        let end = start + operation.part_from(ranks - 1, ranks).end;
        self.registered.iter().filter(|memory| memory.holds(start..end)).find_map(RegisteredMemory::owner)
    }

    /// A part of the output, to be received.
    fn received<T>(&self, output: *const T, range: Range<usize>) -> Bytes {
        Bytes { is_lasting: self.held.is_some(), ..Bytes::of(output, range) }
    }

    fn is_alone(&self) -> bool {
        self.local_peers.is_empty()
    }

    fn own(&self) -> &Counters {
        self.region.counters(self.place)
    }

    fn slot<T: Element>(&self, place: usize, chunk: u64) -> Slot<T> {
        self.region.slot(place, chunk)
    }

    /// The memory for this node's partial sums in the chunk of a window.
    fn given(&self, window: usize) -> *mut u8 {
        self.scratch.as_ptr().wrapping_add(2 * window * self.room)
    }

    /// The memory for the other nodes' partial sums.
    fn taken(&self, window: usize) -> *mut u8 {
        self.given(window).wrapping_add(self.room)
    }

    /// Lets the connections go on, and notes which ranks have joined the operation.
    fn progress(&mut self, running: &RunningOperation) -> Result<(), Stop> {
        if let Err((rank, error)) = self.peers.progress() {
            return Err(lost(&self.members, running, rank, &error));
        }
        for peer in self.peers.all.iter_mut().filter(|peer| !peer.has_come) {
            if peer.receiving.complete() >= peer.header_at {
                peer.has_come = true;
                self.region.mark(self.place, peer.rank).store(running.operation.sequence, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Waits until `awaited` names no rank any more.
    fn wait(&mut self, running: &RunningOperation, awaited: impl Fn(&Self) -> Option<usize>) -> Result<(), Stop> {
        if awaited(self).is_none() {
            return Ok(());
        }
        let began = Instant::now();
        loop {
            self.progress(running)?;
            let Some(rank) = awaited(self) else { return Ok(()) };
            running.go_on_waiting(&self.members, || self.late(running, rank))?;
            if self.topology.node_of(rank) != self.topology.node_of(self.members.rank) {
                self.peers.sleep(SLEEP);
                continue;
            }
            let counters = self.region.counters(self.topology.place_of(rank));
            // Read before the counter: work done before leaving still counts.
            let left = counters.left.load(Ordering::Acquire) != 0;
            if awaited(self) != Some(rank) {
                continue;
            }
            if left {
                return Err(self.members.left(rank, running.operation));
            }
            let waited = began.elapsed();
            // The longer the wait, the longer the sleep: many ranks of a core would spend it on looking.
            if waited < SPIN {
                counters.spin(self.are_more_than_cores);
            } else if !self.peers.sleep((waited / 8).clamp(NAP, SLEEP)) {
                let counters = self.region.counters(self.topology.place_of(rank));
                counters
                    .sleep_unless(|| awaited(self) != Some(rank) || counters.left.load(Ordering::Acquire) != 0, SLEEP);
            }
        }
    }

    /// Waits until `counter` of every other rank of the node has reached `target`.
    fn wait_for_local_peers(
        &mut self,
        running: &RunningOperation,
        counter: fn(&Counters) -> &AtomicU64,
        target: u64,
    ) -> Result<(), Stop> {
        (0..self.local_peers.len())
            .try_for_each(|local_peer| self.wait_for_local_peer(running, local_peer, counter, target))
    }

    fn wait_for_local_peer(
        &mut self,
        running: &RunningOperation,
        local_peer: usize,
        counter: fn(&Counters) -> &AtomicU64,
        target: u64,
    ) -> Result<(), Stop> {
        let (rank, place) = self.local_peers[local_peer];
        self.wait(running, |own| (counter(own.region.counters(place)).load(Ordering::Acquire) < target).then_some(rank))
    }

    /// Waits until the slot of `chunk` may be overwritten.
    fn wait_for_slot(&mut self, running: &RunningOperation, chunk: u64) -> Result<(), Stop> {
        self.wait_for_local_peers(running, |counters| &counters.consumed, (chunk + 1).saturating_sub(SLOTS as u64))
    }

    /// The ranks that have not entered the operation, as far as this node knows; if there are none, the awaited rank.
    fn late(&self, running: &RunningOperation, awaited: usize) -> Vec<usize> {
        let (own, sequence) = (self.members.rank, running.operation.sequence);
        let has_entered = |rank: usize| {
            let counters = || self.region.counters(self.topology.place_of(rank));
            rank == own || counters().entered.load(Ordering::Acquire) >= sequence
        };
        let node = self.topology.node_of(own);
        // A rank that is late itself hears nothing.
        let misses = |local_peer: usize, rank: usize| {
            !self.topology.common(local_peer, rank).is_empty()
                && has_entered(local_peer)
                && self.region.mark(self.topology.place_of(local_peer), rank).load(Ordering::Acquire) < sequence
        };
        let is_late = |&rank: &usize| match self.topology.node_of(rank) == node {
            true => !has_entered(rank),
            false => self.topology.nodes()[node].iter().any(|&local_peer| misses(local_peer, rank)),
        };
        let late: Vec<_> = (0..self.members.world_size()).filter(is_late).collect();
        running.agreed.set(late.is_empty());
        if late.is_empty() { vec![awaited] } else { late }
    }

    /// Tells this rank's operation to its node and to all peers. A rank that is alone on its node tells them together with its
    /// first data.
    fn enter(&mut self, running: &RunningOperation) -> Result<(), Stop> {
        let header = running.operation.header(self.members.identity);
        self.own().set_header(running.operation.sequence, &header.0);
        self.own().publish(&self.own().entered, running.operation.sequence);
        self.headers[0] = header.to_bytes();
        let headers = self.headers.as_mut_ptr();
        for (at, peer) in self.peers.all.iter_mut().enumerate() {
            // SAFETY: both outlive the operation, and nothing else uses them until the messages are complete.
            unsafe {
                peer.sending.begin(Bytes::own(headers, 0..1));
                peer.receiving.begin(Bytes::own(headers, at + 1..at + 2));
            }
            peer.header_at = peer.receiving.begun();
            peer.has_come = false;
        }
        if self.is_alone() { Ok(()) } else { self.progress(running) }
    }

    /// Waits until all ranks of the node have entered the operation, and compares their headers. No other data of theirs is
    /// read before.
    fn agree_on_node(&mut self, running: &RunningOperation) -> Result<(), Stop> {
        let sequence = running.operation.sequence;
        self.wait_for_local_peers(running, |counters| &counters.entered, sequence)?;
        let own = &self.topology.nodes()[self.topology.node_of(self.members.rank)];
        let header = |rank: usize| Header(self.region.counters(self.topology.place_of(rank)).header(sequence));
        self.first_word(running, self.members.compare_some(running, own.iter().copied(), header))
    }

    /// Leaves a difference to the node of rank 0 if that finds one soon: it compares with rank 0, as all ranks should.
    fn first_word(&self, running: &RunningOperation, compared: Result<(), Stop>) -> Result<(), Stop> {
        let is_first = self.topology.node_of(0) == self.topology.node_of(self.members.rank);
        compared.map_err(|stop| if !is_first && running.failure.fails_within(GRACE) { Stop::Failed } else { stop })
    }

    /// Waits for the headers of all peers, and compares them with that of the node, which has agreed. No other data of
    /// theirs is accepted before.
    fn agree_with_peers(&mut self, running: &RunningOperation) -> Result<(), Stop> {
        self.wait(running, |own| own.peers.all.iter().find(|peer| !peer.has_come).map(|peer| peer.rank))?;
        let leaving = Header::LEAVING.to_bytes();
        if let Some(at) = self.headers[1..].iter().position(|header| *header == leaving) {
            return Err(self.members.left(self.peers.all[at].rank, running.operation));
        }
        let node = self.topology.node_of(self.members.rank);
        let first = self.topology.nodes()[node][0];
        let peers = self.peers.all.iter().map(|peer| peer.rank);
        let lowest = peers.clone().next().map_or(first, |peer| peer.min(first));
        // A rank that is no peer is the first of this node, whose ranks have agreed.
        let at = |rank: usize| self.peers.all.binary_search_by_key(&rank, |peer| peer.rank).map_or(0, |at| at + 1);
        let header = |rank: usize| Header::from_bytes(&self.headers[at(rank)]);
        let ranks = [lowest].into_iter().chain(peers).chain([first]);
        self.first_word(running, self.members.compare_some(running, ranks, header))?;
        self.own().publish(&self.own().heard, running.operation.sequence);
        Ok(())
    }

    /// Waits until nobody uses the operation's memory any more, and all ranks have entered the operation.
    fn finish(&mut self, running: &RunningOperation) -> Result<(), Stop> {
        self.wait(running, |own| own.peers.unsent())?;
        self.wait_for_local_peers(running, |counters| &counters.heard, running.operation.sequence)
    }

    fn carry_out(&mut self, running: &RunningOperation) -> Result<(), Stop> {
        self.enter(running)?;
        match running.operation.kind {
            _ if running.operation.count == 0 => {
                self.agree_on_node(running)?;
                self.agree_with_peers(running)?;
            }
            Kind::AllReduce if running.operation.algorithm != Algorithm::Tree => {
                with_element!(running.operation.dtype, T => self.all_reduce_in_rounds::<T>(running))?
            }
            // A sum for one rank travels as one for all does.
            Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter => match running.operation.compressed {
                Some(by) => self.all_reduce_compressed(running, by)?,
                None => with_element!(running.operation.dtype, T => self.reduce::<T>(running))?,
            },
            Kind::AllGather
            | Kind::AllGatherPieces
            | Kind::Gather
            | Kind::Scatter
            | Kind::AllToAll
            | Kind::Broadcast
            | Kind::Transfer
            | Kind::Barrier => self.gather(running)?,
        }
        self.finish(running)
    }

    /// The operation on its own memory, which ends in any case.
    fn execute_in_place(&mut self, running: &RunningOperation) -> Result<(), Stop> {
        self.is_between = false;
        self.held = self.registered_memory(running.operation);
        let result = self.carry_out(running);
        if let Err(stop) = result {
            if !self.peers.links.keeps_memory() {
                return Err(stop);
            }
            // Ranks that have not heard of the failure may still read the memory of this one, which the caller may free.
            if let Stop::Raise(cause) = stop {
                running.failure.raise(*cause);
            }
            std::thread::sleep(GRACE);
            return Err(Stop::Failed);
        }
        self.held = None;
        self.is_between = true;
        Ok(())
    }
}

impl Transport for HierarchicalTransport {
    fn execute(&mut self, running: &RunningOperation) -> Result<(), Stop> {
        match running.operation.is_exchange() && running.operation.count > 0 {
            true => self.exchange(running),
            false => self.execute_in_place(running),
        }
    }

    fn buffer_bytes(&self) -> BufferBytes {
        let (slots, parts) = match self.is_alone() {
            true => (0, WINDOWS),
            false => (SLOTS, 2 * WINDOWS),
        };
        BufferBytes {
            own: slots * SLOT_BYTES + parts * self.room + self.peers.links.buffer_bytes(),
            of_local_peers: self.local_peers.len() * slots * SLOT_BYTES,
        }
    }

    fn traffic(&self) -> Traffic {
        self.peers.links.traffic()
    }

    fn region(&self) -> Option<Arc<Region>> {
        None
    }

    fn register_memory(&mut self, memory: RegisteredMemory) {
        self.registered.retain(RegisteredMemory::is_alive);
        self.registered.push(memory);
    }

    fn close(&mut self, failure: &Failure, timeout: Duration) {
        self.own().leave();
        self.peers.links.close(&mut self.peers.all, self.is_between, failure, timeout);
    }
}

/// Memory to which something may still be written after its transport has gone.
static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

/// The headers, the scratch, and what was registered for the operation that failed.
#[expect(dead_code, reason = "held for ever")]
struct Kept(Vec<[u8; HEADER_BYTES]>, Mapping, Option<MemoryOwner>);

impl Drop for HierarchicalTransport {
    fn drop(&mut self) {
        // SAFETY: neither is used again.
        let (headers, scratch) =
            unsafe { (ManuallyDrop::take(&mut self.headers), ManuallyDrop::take(&mut self.scratch)) };
        if self.peers.links.keeps_memory() {
            let kept = Kept(headers, scratch, self.held.take());
            lock(&KEPT).push(kept);
        }
    }
}

/// The cause if a peer's connection broke. The ranks' supervisor knows the reason better, and reports it within
/// moments.
fn lost(members: &Members, running: &RunningOperation, rank: usize, error: &io::Error) -> Stop {
    if let Some(cause) = Altered::cause(error) {
        return Stop::Raise(Box::new(cause.during(running.operation.describe(), running.operation.sequence)));
    }
    if running.failure.fails_within(GRACE) {
        return Stop::Failed;
    }
    let how = match error.kind() {
        ErrorKind::UnexpectedEof => "closed".to_owned(),
        _ => format!("broke ({error})"),
    };
    let message = format!("its connection to rank {} {how}: see its own messages", members.job_ranks[members.rank]);
    members.blame(rank, CauseKind::Exited, running.operation, message)
}
