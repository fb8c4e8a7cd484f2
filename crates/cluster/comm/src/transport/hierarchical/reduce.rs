//! All-reduce and reduce-scatter: a node adds up its ranks' values for every owner, and the owner adds up the nodes'.
//!
//! Each rank owns a part of every chunk, on behalf of its node. For an owner on another node, the rank of this node that
//! serves the owner's channel adds up the node's partial sums, and sends them. The owner adds them to those of its own node in
//! the order of the tree. In an all-reduce the sum goes back the same way.

use std::ops::Range;

use super::{DIRECT_BYTES, HierarchicalTransport, Host, LOOK_BYTES, WINDOWS, copy};
use crate::element::Element;
use crate::operation::{Kind, Operation};
use crate::pieces::{chunk_len, part_of, piece};
use crate::shards::Walk;
use crate::transport::queue::Bytes;
use crate::transport::{RunningOperation, Stop};
use crate::tree::tree_reduce;

/// How the data of a reduction are divided into chunks, and a chunk among owners.
#[derive(Clone, Copy)]
pub(super) struct Partition {
    pub way: Way,
    pub count: usize,
    /// Bytes of an element.
    pub size: usize,
    /// Elements of each partial sum in a chunk; in pieces, of each owner's.
    pub chunk_len: usize,
    pub chunks: usize,
    /// Elements from one partial sum in a slot to the next.
    pub width: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// A chunk is a part of the data, of which every rank owns a slice.
    Slices,
    /// All data in one chunk, owned by the first rank of every node, so that no sum travels.
    Direct,
    /// A chunk is a part of every rank's piece of the data.
    Pieces,
}

/// One chunk of an operation.
#[derive(Clone, Copy)]
pub(super) struct Chunk<'a> {
    pub running: &'a RunningOperation<'a>,
    pub partition: &'a Partition,
    /// From 0.
    pub step: usize,
}

impl Chunk<'_> {
    /// The chunk before this one by so many, if the operation has it.
    pub(super) fn earlier(&self, by: usize) -> Option<Self> {
        let step = self.step.checked_sub(by).filter(|&step| step < self.partition.chunks)?;
        Some(Chunk { step, ..*self })
    }

    pub(super) fn window(&self) -> usize {
        self.step % WINDOWS
    }

    fn operation(&self) -> &Operation {
        self.running.operation
    }

    /// The caller's data, where the result goes too.
    pub(super) fn data<T>(&self) -> *mut T {
        self.running.operation.output.cast()
    }
}

impl HierarchicalTransport {
    pub(super) fn reduce<T: Element>(&mut self, running: &RunningOperation) -> Result<(), Stop> {
        let partition = self.partition(running.operation);
        for step in 0..partition.chunks + 3 {
            let chunk = Chunk { running, partition: &partition, step };
            if step < partition.chunks {
                self.stage::<T>(&chunk)?;
                if step == 0 {
                    self.agree_on_node(running)?;
                }
                self.give::<T>(&chunk)?;
                if step == 0 {
                    self.agree_with_peers(running)?;
                }
                self.expect::<T>(&chunk);
            }
            if let Some(chunk) = chunk.earlier(1) {
                self.add_up::<T>(&chunk)?;
            }
            if let Some(chunk) = chunk.earlier(2) {
                self.publish_sums::<T>(&chunk)?;
            }
            if let Some(chunk) = chunk.earlier(3) {
                self.collect_sums::<T>(&chunk)?;
            }
        }
        self.chunk += partition.chunks as u64;
        Ok(())
    }

    /// The number of a chunk among those of all operations.
    pub(super) fn number(&self, chunk: &Chunk) -> u64 {
        self.chunk + chunk.step as u64
    }

    /// The division of an operation; also counts the partial sums of each node.
    fn partition(&mut self, operation: &Operation) -> Partition {
        let Operation { count, shards, .. } = *operation;
        let (size, ranks) = (operation.dtype.size(), self.members.world_size());
        self.partials.fill(0);
        for (run, first) in self.topology.runs().iter().zip(&mut self.firsts) {
            *first = self.partials[run.node];
            self.partials[run.node] += shards.subtrees(shards.local_by(&run.ranks)).count();
        }
        let most = self.partials.iter().copied().fold(shards.most_partials(), usize::max);
        if operation.kind == Kind::ReduceScatter {
            let chunk_len = self.segments.chunk / size / (ranks * most);
            assert!(chunk_len > 0, "a slot cannot be divided among {ranks} ranks");
            let longest = (0..ranks).map(|owner| operation.piece_of(owner, ranks).len()).max().unwrap_or(0);
            let chunks = longest.div_ceil(chunk_len);
            return Partition { way: Way::Pieces, count, size, chunk_len, chunks, width: ranks * chunk_len };
        }
        let bytes = count * size * most;
        let others = self.topology.nodes().len() - 1;
        let is_direct = bytes <= DIRECT_BYTES || bytes.saturating_mul(others) <= self.segments.direct;
        let way = if is_direct { Way::Direct } else { Way::Slices };
        let chunk_len = chunk_len(self.segments.chunk, size, most);
        Partition { way, count, size, chunk_len, chunks: count.div_ceil(chunk_len), width: chunk_len }
    }

    /// The part of a chunk that a rank owns.
    pub(super) fn owned(&self, chunk: &Chunk, owner: usize) -> Range<usize> {
        let node = self.topology.node_of(owner);
        let place = self.topology.place_of(owner);
        match chunk.partition.way {
            Way::Slices => {
                let start = chunk.step * chunk.partition.chunk_len;
                let of_node = piece(
                    chunk.partition.chunk_len.min(chunk.partition.count - start),
                    chunk.partition.size,
                    node,
                    self.topology.nodes().len(),
                );
                let slice = piece(of_node.len(), chunk.partition.size, place, self.topology.nodes()[node].len());
                start + of_node.start + slice.start..start + of_node.start + slice.end
            }
            Way::Direct => 0..if place == 0 { chunk.partition.count } else { 0 },
            Way::Pieces => {
                let piece = chunk.operation().piece_of(owner, self.members.world_size());
                part_of(&piece, chunk.step * chunk.partition.chunk_len, chunk.partition.chunk_len)
            }
        }
    }

    /// The place in a slot of an element of what `owner` owns.
    fn position(&self, chunk: &Chunk, owner: usize, element: usize) -> usize {
        match chunk.partition.way {
            Way::Slices => element - chunk.step * chunk.partition.chunk_len,
            Way::Direct => element,
            Way::Pieces => owner * chunk.partition.chunk_len + element - self.owned(chunk, owner).start,
        }
    }

    /// The part of what `owner` owns that `other`, on another node, adds up for its node.
    pub(super) fn share(&self, chunk: &Chunk, owner: usize, other: usize) -> Range<usize> {
        let owned = self.owned(chunk, owner);
        match chunk.partition.way {
            Way::Direct => owned.start..if self.topology.place_of(other) == 0 { owned.end } else { owned.start },
            Way::Slices | Way::Pieces => self.topology.share(&owned, chunk.partition.size, owner, other),
        }
    }

    /// The part whose sum travels from `owner` to `other`, on another node.
    pub(super) fn returned(&self, chunk: &Chunk, owner: usize, other: usize) -> Range<usize> {
        match chunk.partition.way {
            Way::Slices => self.share(chunk, owner, other),
            Way::Direct | Way::Pieces => 0..0,
        }
    }

    pub(super) fn is_on_node(&self, rank: usize) -> bool {
        self.topology.node_of(rank) == self.topology.node_of(self.members.rank)
    }

    /// Copies what other ranks of the node add up to this rank's slot.
    fn stage<T: Element>(&mut self, chunk: &Chunk) -> Result<(), Stop> {
        if self.is_alone() {
            return Ok(());
        }
        let operation = chunk.operation();
        let rank = self.members.rank;
        let number = self.number(chunk);
        self.wait_for_slot(chunk.running, number)?;
        let data = chunk.data::<T>();
        let slot = self.slot::<T>(self.place, number);
        let partials = operation.shards.partials(rank).count();
        for owner in (0..self.members.world_size()).filter(|&owner| owner != rank) {
            let owned = self.owned(chunk, owner);
            let is_local_peer = self.is_on_node(owner);
            // Directly, the first rank of the node adds up for all of them.
            if !is_local_peer && chunk.partition.way == Way::Direct {
                continue;
            }
            let own = if is_local_peer { owned.start..owned.start } else { self.share(chunk, owner, rank) };
            for part in [owned.start..own.start, own.end..owned.end].into_iter().filter(|part| !part.is_empty()) {
                let at = self.position(chunk, owner, part.start);
                for partial in 0..partials {
                    let from = data.wrapping_add(partial * operation.stride + part.start).cast_const();
                    // SAFETY: inside the caller's data, and this rank's slot, which no rank reads yet.
                    unsafe { slot.write(partial * chunk.partition.width + at, from, part.len()) };
                }
            }
        }
        self.own().publish(&self.own().staged, number + 1);
        Ok(())
    }

    /// Adds up what the node has for each peer, and sends it.
    fn give<T: Element>(&mut self, chunk: &Chunk) -> Result<(), Stop> {
        let number = self.number(chunk);
        let window = chunk.window();
        self.wait_for_local_peers(chunk.running, |counters| &counters.staged, number + 1)?;
        self.wait(chunk.running, |own| own.peers.unsent_in(window))?;
        let given = self.given(window).cast::<T>();
        let mut end = 0;
        let mut looked = 0;
        for at in 0..self.peers.all.len() {
            let owner = self.peers.all[at].rank;
            let share = self.share(chunk, owner, self.members.rank);
            // Directly, all peers get the same.
            let is_known = chunk.partition.way == Way::Direct && end > 0;
            let mut to = if is_known { 0 } else { end };
            for run in 0..self.topology.runs().len() {
                if share.is_empty() || self.topology.runs()[run].node != self.topology.node_of(self.members.rank) {
                    continue;
                }
                let local = chunk.operation().shards.local_by(&self.topology.runs()[run].ranks);
                for (partial, node) in chunk.operation().shards.subtrees(local).enumerate() {
                    let message = if self.is_alone() {
                        let data = chunk.data::<T>().wrapping_add(partial * chunk.operation().stride);
                        Bytes::of(data, share.clone())
                    } else {
                        let sum = given.wrapping_add(to);
                        if !is_known {
                            self.add_up_node::<T>(chunk, owner, (run, node), &share, sum);
                        }
                        to += share.len();
                        Bytes::of(sum, 0..share.len())
                    };
                    // SAFETY: the transport's memory, which the wait above keeps until the message is sent; or the caller's
                    // data, which changes there only when the sum comes back.
                    unsafe { self.peers.all[at].sending.begin(message) };
                }
            }
            end = end.max(to);
            let peer = &mut self.peers.all[at];
            peer.sent_at[window] = peer.sending.begun();
            if (end - looked) * size_of::<T>() >= LOOK_BYTES {
                self.progress(chunk.running)?;
                looked = end;
            }
        }
        self.progress(chunk.running)
    }

    /// Adds up one partial sum of a run of this node, below a node of the tree, of a part of what `owner` owns.
    fn add_up_node<T: Element>(
        &self,
        chunk: &Chunk,
        owner: usize,
        (run, node): (usize, Range<usize>),
        part: &Range<usize>,
        sum: *mut T,
    ) {
        let Operation { shards, reduction, .. } = *chunk.operation();
        // The first partial sum below the node is one of the rank that hosts the node's first shard.
        let mut ranks = self.topology.runs()[run].ranks.clone();
        let first = ranks.find(|&rank| shards.local(rank).contains(&node.start)).unwrap_or(0);
        let partial = shards.partials(first).take_while(|partial| partial.start < node.start).count();
        let source = |rank, partial, range: Range<usize>| {
            self.of_local_peer::<T>(chunk, owner, rank, partial, part.start + range.start..part.start + range.end)
        };
        tree_reduce(node, shards.walk_from(first, partial), part.len(), reduction, source, |at, values| {
            // SAFETY: the transport's memory for this part, which only this thread uses.
            unsafe { copy(values.as_ptr(), sum.wrapping_add(at), values.len()) }
        });
    }

    /// Values of a partial sum of a rank of this node: its own data, or what another has staged.
    pub(super) fn of_local_peer<'a, T: Element>(
        &self,
        chunk: &Chunk,
        owner: usize,
        rank: usize,
        partial: usize,
        range: Range<usize>,
    ) -> &'a [T] {
        let from = if rank == self.members.rank {
            chunk.data::<T>().wrapping_add(partial * chunk.operation().stride + range.start).cast_const()
        } else {
            let start = partial * chunk.partition.width + self.position(chunk, owner, range.start);
            self.slot(self.topology.place_of(rank), self.number(chunk)).values(start, range.len())
        };
        // SAFETY: inside the caller's data, or inside a slot that its owner has staged and not yet reused. Nothing writes to
        // it during the slice's lifetime: a sum is written once its block is complete.
        unsafe { std::slice::from_raw_parts(from, range.len()) }
    }

    /// Expects the other nodes' partial sums of what this rank owns.
    fn expect<T: Element>(&mut self, chunk: &Chunk) {
        let window = chunk.window();
        let taken = self.taken(window).cast::<T>();
        let mut end = 0;
        for at in 0..self.peers.all.len() {
            let share = self.share(chunk, self.members.rank, self.peers.all[at].rank);
            self.peers.all[at].taken[window] = end;
            for run in 0..self.topology.runs().len() {
                if self.topology.runs()[run].node != self.topology.node_of(self.peers.all[at].rank) {
                    continue;
                }
                let local = chunk.operation().shards.local_by(&self.topology.runs()[run].ranks);
                for _ in chunk.operation().shards.subtrees(local) {
                    // SAFETY: the transport's memory, whose earlier messages have been added up. Any bytes are a valid value.
                    unsafe { self.peers.all[at].receiving.begin(Bytes::own(taken, end..end + share.len())) };
                    end += share.len();
                }
            }
            let peer = &mut self.peers.all[at];
            peer.come_at[window] = peer.receiving.begun();
        }
    }

    /// Adds up what this rank owns once the other nodes' partial sums have come, and sends the sum back.
    fn add_up<T: Element>(&mut self, chunk: &Chunk) -> Result<(), Stop> {
        let rank = self.members.rank;
        let window = chunk.window();
        let number = self.number(chunk);
        self.wait(chunk.running, |own| own.peers.missing_in(window))?;
        if chunk.partition.way == Way::Direct {
            // The sum replaces the values that this rank sends.
            self.wait(chunk.running, |own| own.peers.unsent_in(window))?;
        }
        let owned = self.owned(chunk, rank);
        match chunk.partition.way {
            Way::Direct => self.add_up_channel::<T>(chunk, 0, owned),
            Way::Slices | Way::Pieces => {
                for channel in self.topology.channels_of(rank) {
                    let part = self.topology.part_of_channel(&owned, chunk.partition.size, rank, channel);
                    self.add_up_channel::<T>(chunk, channel, part);
                }
            }
        }
        for at in 0..self.peers.all.len() {
            let other = self.peers.all[at].rank;
            let sum = self.returned(chunk, rank, other);
            let expected = self.returned(chunk, other, rank);
            let data = chunk.data::<T>();
            let sum = Bytes::of(data, sum);
            let expected = self.received(data, expected);
            let peer = &mut self.peers.all[at];
            // SAFETY: the caller's data. The sum remains unchanged. What is expected replaces this node's values, which the
            // owner has had before it answers; no other code uses them. Any bytes are a valid value.
            unsafe {
                peer.sending.begin(sum);
                peer.receiving.begin(expected);
            }
            peer.returned_at[window] = peer.receiving.begun();
        }
        if chunk.partition.way == Way::Pieces && !self.is_alone() {
            // Nobody reads the slots of this chunk any more.
            self.own().publish(&self.own().reduced, number + 1);
            self.own().publish(&self.own().consumed, number + 1);
        }
        self.progress(chunk.running)
    }

    /// Adds up the part of one channel, for which one rank of every other node has sent that node's partial sums.
    fn add_up_channel<T: Element>(&self, chunk: &Chunk, channel: usize, part: Range<usize>) {
        let Operation { shards, reduction, .. } = *chunk.operation();
        let rank = self.members.rank;
        let number = self.number(chunk);
        let ends = |host: usize| match self.hosts.get(host) {
            Some(&Host::LocalPeer(local_peer)) => shards.local(local_peer).end,
            Some(&Host::Run(run)) => shards.local_by(&self.topology.runs()[run].ranks).end,
            None => shards.shards(),
        };
        let source = |host: usize, partial: usize, range: Range<usize>| {
            let range = part.start + range.start..part.start + range.end;
            let run = match self.hosts[host] {
                Host::LocalPeer(local_peer) => return self.of_local_peer(chunk, rank, local_peer, partial, range),
                Host::Run(run) => run,
            };
            let server = self.servers[self.topology.runs()[run].node * self.topology.channels() + channel];
            let peer = &self.peers.all[server.expect("a rank has a peer for each of its channels on every other node")];
            let share = self.share(chunk, rank, peer.rank);
            let at =
                peer.taken[chunk.window()] + (self.firsts[run] + partial) * share.len() + range.start - share.start;
            let from = self.taken(chunk.window()).cast::<T>().wrapping_add(at).cast_const();
            // SAFETY: inside the transport's memory for this peer's partial sums, which have come.
            unsafe { std::slice::from_raw_parts(from, range.len()) }
        };
        let data = chunk.data::<T>();
        // Mates read the sum from the slot; directly and in slices, nobody stages data there.
        let slot = (!self.is_alone() && chunk.partition.way != Way::Pieces && !part.is_empty())
            .then(|| (self.slot::<T>(self.place, number), self.position(chunk, rank, part.start)));
        tree_reduce(0..shards.shards(), Walk::new(0, 0, ends), part.len(), reduction, source, |at, values| {
            // SAFETY: inside the caller's data and this rank's own slot, at the part that only this rank writes.
            unsafe {
                copy(values.as_ptr(), data.wrapping_add(part.start + at), values.len());
                if let Some((slot, start)) = &slot {
                    slot.write(start + at, values.as_ptr(), values.len());
                }
            }
        });
    }

    /// Copies the sums that have come from other nodes to this rank's slot, next to its own.
    fn publish_sums<T: Element>(&mut self, chunk: &Chunk) -> Result<(), Stop> {
        if chunk.partition.way == Way::Pieces {
            return Ok(());
        }
        self.wait(chunk.running, |own| own.peers.unreturned_in(chunk.window()))?;
        if self.is_alone() {
            return Ok(());
        }
        let number = self.number(chunk);
        let data = chunk.data::<T>();
        let slot = self.slot::<T>(self.place, number);
        for peer in &self.peers.all {
            let part = self.returned(chunk, peer.rank, self.members.rank);
            if !part.is_empty() {
                let to = self.position(chunk, peer.rank, part.start);
                // SAFETY: inside the caller's data, and inside this rank's own slot, where it has staged nothing.
                unsafe { slot.write(to, data.wrapping_add(part.start).cast_const(), part.len()) };
            }
        }
        self.own().publish(&self.own().reduced, number + 1);
        Ok(())
    }

    /// Copies the sums from the slots of the other ranks of the node.
    pub(super) fn collect_sums<T: Element>(&mut self, chunk: &Chunk) -> Result<(), Stop> {
        if self.is_alone() || chunk.partition.way == Way::Pieces {
            return Ok(());
        }
        let data = chunk.data::<T>();
        let number = self.number(chunk);
        for local_peer in 0..self.local_peers.len() {
            let (rank, place) = self.local_peers[local_peer];
            self.wait_for_local_peer(chunk.running, local_peer, |counters| &counters.reduced, number + 1)?;
            let slot = self.slot::<T>(place, number);
            for owner in 0..self.members.world_size() {
                let part = match owner {
                    _ if owner == rank => self.owned(chunk, owner),
                    _ if self.is_on_node(owner) => continue,
                    _ => self.returned(chunk, owner, rank),
                };
                if !part.is_empty() {
                    let from = self.position(chunk, owner, part.start);
                    // SAFETY: inside a slot that its owner keeps until this rank has consumed it, and the caller's data.
                    unsafe { slot.read(from, data.wrapping_add(part.start), part.len()) };
                }
            }
        }
        self.own().publish(&self.own().consumed, number + 1);
        Ok(())
    }
}
