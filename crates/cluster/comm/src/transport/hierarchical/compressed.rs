//! All-reduces whose values cross between nodes in 16 bits, with error feedback ([`crate::compression`]).
//!
//! They go as sums in the tree do (`reduce.rs`): each rank owns a slice of every chunk. The rank that serves an owner's channel
//! adds up its node's values in f32 and sends them rounded; the owner rounds those of its own node, too, so that a sum does not depend on
//! who owns it. It adds up the nodes, and sends the rounded sum back. Chunks have one length over all links, so that who
//! rounds what, and keeps what is lost, depends on the ranks and their nodes alone.

use std::ops::Range;
use std::slice::{from_raw_parts, from_raw_parts_mut};

use super::reduce::{Chunk, Partition, Way};
use super::{HierarchicalTransport, LOOK_BYTES, SLOT_BYTES};
use crate::compression::Compressed;
use crate::element::Reduction;
use crate::rounds::add_up_partials;
use crate::shards::{ShardMap, split};
use crate::transport::queue::Bytes;
use crate::transport::{RunningOperation, Stop};
use crate::tree::{BLOCK, tree_reduce};

/// Bytes of an element in the caller's data.
const SIZE: usize = size_of::<f32>();
/// Elements of a chunk. Rounded they fill half of the memory for them, and sums the other half.
const CHUNK_LEN: usize = SLOT_BYTES / SIZE;

impl HierarchicalTransport {
    pub(super) fn all_reduce_compressed(&mut self, running: &RunningOperation, by: Compressed) -> Result<(), Stop> {
        let count = running.operation.count;
        // SAFETY: the caller's data, which is this operation's.
        unsafe { add_up_partials::<f32>(running.operation, self.members.rank) };
        let chunks = count.div_ceil(CHUNK_LEN);
        let partition =
            Partition { way: Way::Slices, count, size: SIZE, chunk_len: CHUNK_LEN, chunks, width: CHUNK_LEN };
        for step in 0..chunks + 3 {
            let chunk = Chunk { running, partition: &partition, step };
            if step < chunks {
                self.stage_values(&chunk)?;
                if step == 0 {
                    self.agree_on_node(running)?;
                }
                self.give_compressed(&chunk, by)?;
                if step == 0 {
                    self.agree_with_peers(running)?;
                }
                self.expect_compressed(&chunk);
            }
            if let Some(chunk) = chunk.earlier(1) {
                self.add_up_compressed(&chunk, by)?;
            }
            if let Some(chunk) = chunk.earlier(2) {
                self.publish_compressed_sums(&chunk, by)?;
            }
            if let Some(chunk) = chunk.earlier(3) {
                self.collect_sums::<f32>(&chunk)?;
            }
        }
        self.chunk += chunks as u64;
        Ok(())
    }

    /// Copies this rank's values to its slot. What other ranks do not add up there is overwritten by sums.
    fn stage_values(&mut self, chunk: &Chunk) -> Result<(), Stop> {
        if self.is_alone() {
            return Ok(());
        }
        let number = self.number(chunk);
        self.wait_for_slot(chunk.running, number)?;
        let start = chunk.step * CHUNK_LEN;
        let values = chunk.data::<f32>().wrapping_add(start).cast_const();
        // SAFETY: inside the caller's data, and this rank's slot, which no rank reads yet.
        unsafe { self.slot(self.place, number).write(0, values, CHUNK_LEN.min(chunk.partition.count - start)) };
        self.own().publish(&self.own().staged, number + 1);
        Ok(())
    }

    /// Rounds the node's values of what this rank owns, and those for each peer, which it sends.
    fn give_compressed(&mut self, chunk: &Chunk, by: Compressed) -> Result<(), Stop> {
        let rank = self.members.rank;
        let window = chunk.window();
        let number = self.number(chunk);
        self.wait_for_local_peers(chunk.running, |counters| &counters.staged, number + 1)?;
        self.wait(chunk.running, |own| own.peers.unsent_in(window))?;
        let owned = self.owned(chunk, rank);
        let mut to = self.given(window).cast::<u16>();
        self.compress_node(chunk, by, rank, &owned, to);
        to = to.wrapping_add(owned.len());
        let mut rounded = 0;
        for at in 0..self.peers.all.len() {
            let owner = self.peers.all[at].rank;
            let share = self.share(chunk, owner, rank);
            self.compress_node(chunk, by, owner, &share, to);
            let peer = &mut self.peers.all[at];
            // SAFETY: the transport's memory, which the wait above keeps until the message is sent.
            unsafe { peer.sending.begin(Bytes::own(to, 0..share.len())) };
            peer.sent_at[window] = peer.sending.begun();
            to = to.wrapping_add(share.len());
            rounded += share.len() * size_of::<u16>();
            if rounded >= LOOK_BYTES {
                self.progress(chunk.running)?;
                rounded = 0;
            }
        }
        self.progress(chunk.running)
    }

    /// Adds up this node's values of a part of what `owner` owns, and rounds them.
    fn compress_node(&self, chunk: &Chunk, by: Compressed, owner: usize, part: &Range<usize>, to: *mut u16) {
        let ranks = &self.topology.nodes()[self.topology.node_of(self.members.rank)];
        let source = |place: usize, _, range: Range<usize>| {
            self.of_local_peer(chunk, owner, ranks[place], 0, part.start + range.start..part.start + range.end)
        };
        let tree = ShardMap::one_each(ranks.len());
        tree_reduce(0..ranks.len(), tree.walk(), part.len(), Reduction::Sum, source, |at, values| {
            // SAFETY: the transport's memory for this part, which only this thread uses.
            let rounded = unsafe { from_raw_parts_mut(to.wrapping_add(at), values.len()) };
            by.to.compress(values, kept(by, part.start + at, values.len()), rounded);
        });
    }

    /// Expects the other nodes' values of what this rank owns.
    fn expect_compressed(&mut self, chunk: &Chunk) {
        let rank = self.members.rank;
        let window = chunk.window();
        let taken = self.taken(window).cast::<u16>();
        let mut end = 0;
        for at in 0..self.peers.all.len() {
            let share = self.share(chunk, rank, self.peers.all[at].rank);
            let peer = &mut self.peers.all[at];
            peer.taken[window] = end;
            // SAFETY: the transport's memory, whose earlier messages have been added up. Any bytes are a valid value.
            unsafe { peer.receiving.begin(Bytes::own(taken, end..end + share.len())) };
            peer.come_at[window] = peer.receiving.begun();
            end += share.len();
        }
    }

    /// Adds up what this rank owns once the other nodes' values have come, and sends the rounded sum back.
    fn add_up_compressed(&mut self, chunk: &Chunk, by: Compressed) -> Result<(), Stop> {
        let rank = self.members.rank;
        let window = chunk.window();
        self.wait(chunk.running, |own| own.peers.missing_in(window))?;
        let owned = self.owned(chunk, rank);
        for channel in self.topology.channels_of(rank) {
            let part = self.topology.part_of_channel(&owned, SIZE, rank, channel);
            self.add_up_nodes(chunk, by, channel, part);
        }
        let (sums, returned) = (self.sums_given(window), self.sums_taken(window));
        let mut end = 0;
        for at in 0..self.peers.all.len() {
            let other = self.peers.all[at].rank;
            let sum = self.returned(chunk, rank, other);
            let expected = self.returned(chunk, other, rank);
            let from = sums.wrapping_add(sum.start.saturating_sub(owned.start));
            let peer = &mut self.peers.all[at];
            // SAFETY: the transport's memory. The sum stays until it is sent, for which the next chunk of this window waits. What
            // came earlier to the memory of what is expected has been expanded. Any bytes are a valid value.
            unsafe {
                peer.sending.begin(Bytes::own(from, 0..sum.len()));
                peer.receiving.begin(Bytes::own(returned, end..end + expected.len()));
            }
            peer.sent_at[window] = peer.sending.begun();
            peer.returned_at[window] = peer.receiving.begun();
            end += expected.len();
        }
        self.progress(chunk.running)
    }

    /// Adds up the part of one channel, for which one rank of every other node has sent that node's values.
    fn add_up_nodes(&self, chunk: &Chunk, by: Compressed, channel: usize, part: Range<usize>) {
        let rank = self.members.rank;
        let window = chunk.window();
        let own_node = self.topology.node_of(rank);
        let owned = self.owned(chunk, rank);
        let sums = self.sums_given(window);
        for start in part.clone().step_by(BLOCK) {
            let block = start..part.end.min(start + BLOCK);
            let load = |node: usize, values: &mut [f32]| {
                let from = if node == own_node {
                    self.given(window).cast::<u16>().wrapping_add(block.start - owned.start)
                } else {
                    let server = self.servers[node * self.topology.channels() + channel];
                    let server = server.expect("a rank has a peer for each of its channels on every other node");
                    let peer = &self.peers.all[server];
                    let share = self.share(chunk, rank, peer.rank);
                    self.taken(window).cast::<u16>().wrapping_add(peer.taken[window] + block.start - share.start)
                };
                // SAFETY: inside the transport's memory for the node's values, which have come.
                by.to.expand(unsafe { from_raw_parts(from.cast_const(), block.len()) }, values);
            };
            let mut sum = [0.0; BLOCK];
            let sum = &mut sum[..block.len()];
            add_up(0..self.topology.nodes().len(), sum, &load);
            // SAFETY: the transport's memory for the sums of what this rank owns, which only this thread uses.
            let rounded = unsafe { from_raw_parts_mut(sums.wrapping_add(block.start - owned.start), block.len()) };
            by.to.compress(sum, kept(by, block.start, block.len()), rounded);
            self.expand_sum(chunk, by, block, rounded);
        }
    }

    /// Writes a rounded sum to the caller's data, and to this rank's slot for the other ranks of the node.
    fn expand_sum(&self, chunk: &Chunk, by: Compressed, part: Range<usize>, rounded: &[u16]) {
        let data = chunk.data::<f32>().wrapping_add(part.start);
        // SAFETY: the caller's data, whose values of this part this node's ranks have added up.
        by.to.expand(rounded, unsafe { from_raw_parts_mut(data, part.len()) });
        if !self.is_alone() {
            let slot = self.slot(self.place, self.number(chunk));
            let start = part.start - chunk.step * CHUNK_LEN;
            // SAFETY: as above, and inside this rank's own slot, where no other rank reads this part before it is published.
            unsafe { slot.write(start, data.cast_const(), part.len()) };
        }
    }

    /// Expands the sums that have come from other nodes.
    fn publish_compressed_sums(&mut self, chunk: &Chunk, by: Compressed) -> Result<(), Stop> {
        let window = chunk.window();
        self.wait(chunk.running, |own| own.peers.unreturned_in(window))?;
        let mut from = self.sums_taken(window);
        for peer in &self.peers.all {
            let part = self.returned(chunk, peer.rank, self.members.rank);
            let len = part.len();
            // SAFETY: inside the transport's memory for what has come from this peer.
            self.expand_sum(chunk, by, part, unsafe { from_raw_parts(from.cast_const(), len) });
            from = from.wrapping_add(len);
        }
        if !self.is_alone() {
            self.own().publish(&self.own().reduced, self.number(chunk) + 1);
        }
        Ok(())
    }

    /// The memory for the rounded sums that this rank sends back.
    fn sums_given(&self, window: usize) -> *mut u16 {
        self.given(window).cast::<u16>().wrapping_add(CHUNK_LEN)
    }

    /// The memory for the rounded sums that come back.
    fn sums_taken(&self, window: usize) -> *mut u16 {
        self.taken(window).cast::<u16>().wrapping_add(CHUNK_LEN)
    }
}

/// What this rank has kept of some elements. Each element is one of a single part, so nothing else uses the slice while it is used.
fn kept<'a>(by: Compressed, start: usize, len: usize) -> &'a mut [f32] {
    // SAFETY: the caller of the operation gives as many elements as the data have, which this thread alone uses.
    unsafe { from_raw_parts_mut(by.residual.wrapping_add(start), len) }
}

/// Adds up `nodes` in the fixed tree.
fn add_up(nodes: Range<usize>, sum: &mut [f32], load: &impl Fn(usize, &mut [f32])) {
    if nodes.len() == 1 {
        return load(nodes.start, sum);
    }
    let middle = nodes.start + split(nodes.len());
    add_up(nodes.start..middle, sum, load);
    let mut right = [0.0; BLOCK];
    let right = &mut right[..sum.len()];
    add_up(middle..nodes.end, right, load);
    sum.iter_mut().zip(&*right).for_each(|(left, right)| *left += right);
}
