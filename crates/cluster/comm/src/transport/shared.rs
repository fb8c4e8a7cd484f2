//! The fast transport: ranks that share memory, as threads or as processes of one host.
//!
//! Data moves in chunks of at most a slot. In a chunk of an all-reduce each rank stages the parts of its partial sums
//! that others own (one partial sum, unless ranks share the shards unevenly). It adds up its own piece from all slots
//! in tree order, writes the result to its own slot, and collects the other pieces from their owners' slots. The
//! traffic equals a ring's, without a ring's hops. Three chunks are in progress at a time, so that a rank seldom waits.
//!
//! No byte is read too early or overwritten too late. A rank reads a slot of chunk t only after its owner has published
//! `staged` (or `reduced`) beyond t. It writes a slot for chunk t only after all others have published `consumed` for
//! the chunk that last used the slot. Headers are compared before any other rank's data is read.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::region::{Counters, Layout, Region, SLOTS};
use super::slot::Slot;
use super::{DIRECT_BYTES, Members, RunningOperation, SLEEP, SPIN, Stop, Transport, copy};
use crate::algorithm::Algorithm;
use crate::buffers::BufferBytes;
use crate::element::{Element, with_element};
use crate::failure::Failure;
use crate::operation::{Header, Kind, Operation};
use crate::pieces::{chunk_len, part_of, piece};
use crate::sync::{AtomicU64, IS_MODEL};
use crate::traffic::Traffic;
use crate::tree::tree_reduce;

mod exchange;
#[cfg(all(loom, test))]
mod models;
mod rounds;

/// Bytes of a slot: small enough for all slots in use to stay in the caches.
const SLOT_BYTES: usize = if IS_MODEL { 384 } else { 256 << 10 };

/// One rank's view of the shared region.
pub(crate) struct SharedTransport {
    region: Arc<Region>,
    members: Members,
    /// The ranks of the one node.
    nodes: [Vec<usize>; 1],
    /// Number of chunks done in all operations; equal on all ranks between operations.
    chunk: u64,
    are_more_than_cores: bool,
    traffic: Traffic,
}

impl SharedTransport {
    /// The layout of the region for so many ranks.
    pub(crate) const fn layout(ranks: usize) -> Layout {
        Layout { ranks, slot_bytes: SLOT_BYTES, marks: 0 }
    }

    pub(crate) fn new(region: Arc<Region>, members: Members) -> Self {
        debug_assert_eq!(region.ranks(), members.world_size());
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let are_more_than_cores = members.world_size() > cores;
        let nodes = [(0..members.world_size()).collect()];
        SharedTransport { region, members, nodes, chunk: 0, are_more_than_cores, traffic: Traffic::default() }
    }

    fn own(&self) -> &Counters {
        self.region.counters(self.members.rank)
    }

    /// Waits until every other rank's `counter` has reached `target`.
    fn wait_for_all(
        &self,
        running: &RunningOperation,
        counter: fn(&Counters) -> &AtomicU64,
        target: u64,
    ) -> Result<(), Stop> {
        // Starting after this rank's own index spreads the ranks over the words that they poll.
        let ranks = self.members.world_size();
        (1..ranks).try_for_each(|step| self.wait_for(running, (self.members.rank + step) % ranks, counter, target))
    }

    fn wait_for(
        &self,
        running: &RunningOperation,
        rank: usize,
        counter: fn(&Counters) -> &AtomicU64,
        target: u64,
    ) -> Result<(), Stop> {
        let counters = self.region.counters(rank);
        let reached = || counter(counters).load(Ordering::Acquire) >= target;
        if reached() {
            return Ok(());
        }
        let began = Instant::now();
        while began.elapsed() < SPIN {
            counters.spin(self.are_more_than_cores);
            if reached() {
                return Ok(());
            }
        }
        loop {
            running.go_on_waiting(&self.members, || self.late(running, rank))?;
            // Read before the counter: work done before leaving still counts.
            let left = counters.left.load(Ordering::Acquire) != 0;
            if reached() {
                return Ok(());
            }
            if left {
                return Err(self.members.left(rank, running.operation));
            }
            counters.sleep_unless(|| reached() || counters.left.load(Ordering::Acquire) != 0, SLEEP);
        }
    }

    /// The ranks that have not entered the operation; if all have, the awaited rank.
    fn late(&self, running: &RunningOperation, awaited: usize) -> Vec<usize> {
        let has_entered =
            |rank: usize| self.region.counters(rank).entered.load(Ordering::Acquire) >= running.operation.sequence;
        let late: Vec<_> =
            (0..self.members.world_size()).filter(|&rank| rank != self.members.rank && !has_entered(rank)).collect();
        if late.is_empty() { vec![awaited] } else { late }
    }

    /// Publishes this rank's operation.
    fn enter(&self, running: &RunningOperation) {
        let Header(header) = running.operation.header(self.members.identity);
        self.own().set_header(running.operation.sequence, &header);
        self.own().publish(&self.own().entered, running.operation.sequence);
    }

    /// Waits until all have entered the operation, and compares their headers. No other data of a rank is read before.
    fn agree(&self, running: &RunningOperation) -> Result<(), Stop> {
        self.wait_for_all(running, |counters| &counters.entered, running.operation.sequence)?;
        self.members.compare(running, |rank| Header(self.region.counters(rank).header(running.operation.sequence)))
    }

    /// Publishes what this rank has staged. With the first chunk the ranks agree on the operation.
    fn publish_staged(&self, running: &RunningOperation, chunk: u64, is_first: bool) -> Result<(), Stop> {
        self.own().publish(&self.own().staged, chunk + 1);
        if !is_first {
            return Ok(());
        }
        self.enter(running);
        self.agree(running)
    }

    /// Waits until the slot of `chunk` may be overwritten.
    fn wait_for_slot(&self, running: &RunningOperation, chunk: u64) -> Result<(), Stop> {
        self.wait_for_all(running, |counters| &counters.consumed, (chunk + 1).saturating_sub(SLOTS as u64))
    }

    fn all_reduce<T: Element>(&mut self, running: &RunningOperation) -> Result<(), Stop> {
        let count = running.operation.count;
        let ranks = self.members.world_size();
        let rank = self.members.rank;
        let data = running.operation.output.cast::<T>();
        let partials = running.operation.shards.partials(rank).count();
        let most = running.operation.shards.most_partials();
        let chunk_len = chunk_len(SLOT_BYTES, size_of::<T>(), most);
        let chunks = count.div_ceil(chunk_len);
        let direct = count * size_of::<T>() * most <= DIRECT_BYTES;
        let own_piece = |len: usize| if direct { 0..len } else { piece(len, size_of::<T>(), rank, ranks) };
        let range = |step: usize| step * chunk_len..count.min((step + 1) * chunk_len);

        for step in 0..chunks + 2 {
            if step < chunks {
                let chunk = self.chunk + step as u64;
                let range = range(step);
                self.wait_for_slot(running, chunk)?;
                let slot = self.region.slot::<T>(rank, chunk);
                let own = if direct { 0..0 } else { own_piece(range.len()) };
                for partial in 0..partials {
                    let start = partial * running.operation.stride + range.start;
                    for part in [0..own.start, own.end..range.len()] {
                        // SAFETY: inside this rank's slot, which no rank reads yet, and inside the caller's data.
                        unsafe {
                            slot.write(partial * chunk_len + part.start, data.add(start + part.start), part.len())
                        };
                        self.traffic.sent += size_of::<T>() as u64 * part.len() as u64;
                    }
                }
                self.publish_staged(running, chunk, step == 0)?;
            }
            if let Some(step) = step.checked_sub(1).filter(|&step| step < chunks) {
                let chunk = self.chunk + step as u64;
                let range = range(step);
                self.wait_for_all(running, |counters| &counters.staged, chunk + 1)?;
                let own = own_piece(range.len());
                // If every rank adds up everything, others still read the slot, so the result is not written to it.
                let result = (!direct).then(|| (self.region.slot::<T>(rank, chunk), own.start));
                let part = range.start + own.start..range.start + own.end;
                self.traffic.received += self.read::<T>(running.operation, part.len());
                self.traffic.sent += result.as_ref().map_or(0, |_| (size_of::<T>() * part.len()) as u64);
                self.reduce::<T>(running, chunk, part, |partial| partial * chunk_len + own.start, result);
                self.own().publish(&self.own().reduced, chunk + 1);
            }
            if let Some(step) = step.checked_sub(2) {
                let chunk = self.chunk + step as u64;
                let range = range(step);
                for other in (1..ranks).map(|step| (rank + step) % ranks).filter(|_| !direct) {
                    self.wait_for(running, other, |counters| &counters.reduced, chunk + 1)?;
                    let part = piece(range.len(), size_of::<T>(), other, ranks);
                    let slot = self.region.slot::<T>(other, chunk);
                    // SAFETY: the owner published its result, and keeps it until this rank has consumed it.
                    unsafe { slot.read(part.start, data.add(range.start + part.start), part.len()) };
                    self.traffic.received += (size_of::<T>() * part.len()) as u64;
                }
                self.own().publish(&self.own().consumed, chunk + 1);
            }
        }
        self.chunk += chunks as u64;
        Ok(())
    }

    /// Leaves each rank its part of the sum: a piece, or everything to one rank. A chunk moves some of every part; only the part's
    /// owner reads it.
    fn reduce_to_owners<T: Element>(&mut self, running: &RunningOperation) -> Result<(), Stop> {
        let Operation { shards, stride, .. } = *running.operation;
        let ranks = self.members.world_size();
        let rank = self.members.rank;
        let most = shards.most_partials();
        let data = running.operation.output.cast::<T>();
        let pieces = |owner: usize| running.operation.result_of(owner, ranks);
        let owners = (0..ranks).filter(|&owner| !pieces(owner).is_empty());
        let longest = owners.clone().map(|owner| pieces(owner).len()).max().unwrap_or(0);
        let first = owners.clone().next().unwrap_or(0);
        let places = owners.clone().next_back().map_or(1, |last| last + 1 - first);
        let chunk_len = SLOT_BYTES / size_of::<T>() / (places * most);
        assert!(chunk_len > 0, "a slot cannot be divided among {ranks} ranks of one host");
        let chunks = longest.div_ceil(chunk_len);
        let part = |owner: usize, step: usize| part_of(&pieces(owner), step * chunk_len, chunk_len);
        // The place in a slot of the data for `owner`.
        let place = |owner: usize, partial: usize| ((owner - first) * most + partial) * chunk_len;

        for step in 0..chunks + 1 {
            if step < chunks {
                let chunk = self.chunk + step as u64;
                self.wait_for_slot(running, chunk)?;
                let slot = self.region.slot::<T>(rank, chunk);
                for owner in owners.clone().filter(|&owner| owner != rank) {
                    let part = part(owner, step);
                    for partial in 0..shards.partials(rank).count() {
                        // SAFETY: inside the caller's data, and this rank's slot, which no rank reads yet.
                        unsafe {
                            slot.write(place(owner, partial), data.add(partial * stride + part.start), part.len());
                        }
                        self.traffic.sent += (size_of::<T>() * part.len()) as u64;
                    }
                }
                self.publish_staged(running, chunk, step == 0)?;
            }
            if let Some(step) = step.checked_sub(1) {
                let chunk = self.chunk + step as u64;
                self.wait_for_all(running, |counters| &counters.staged, chunk + 1)?;
                if !pieces(rank).is_empty() {
                    self.traffic.received += self.read::<T>(running.operation, part(rank, step).len());
                    self.reduce::<T>(running, chunk, part(rank, step), |partial| place(rank, partial), None);
                }
                self.own().publish(&self.own().reduced, chunk + 1);
                self.own().publish(&self.own().consumed, chunk + 1);
            }
        }
        self.chunk += chunks as u64;
        Ok(())
    }

    /// Bytes of other ranks' partial sums of so many elements.
    fn read<T: Element>(&self, operation: &Operation, len: usize) -> u64 {
        let partials = |rank| operation.shards.partials(rank).count();
        let others = (0..self.members.world_size()).filter(|&rank| rank != self.members.rank);
        (others.map(partials).sum::<usize>() * len * size_of::<T>()) as u64
    }

    /// Adds up a part of the data in one chunk, from this rank's data and the others' slots, where partial sum j of the
    /// part begins at `staged(j)`. The result goes to this rank's data and, if others collect it, to a place in its
    /// own slot.
    fn reduce<T: Element>(
        &self,
        running: &RunningOperation,
        chunk: u64,
        part: Range<usize>,
        staged: impl Fn(usize) -> usize,
        result: Option<(Slot<T>, usize)>,
    ) {
        let Operation { shards, stride, reduction, .. } = *running.operation;
        let data = running.operation.output.cast::<T>();
        let source = |rank: usize, partial: usize, range: Range<usize>| {
            let from = if rank == self.members.rank {
                data.cast_const().wrapping_add(partial * stride + part.start + range.start)
            } else {
                self.region.slot::<T>(rank, chunk).values(staged(partial) + range.start, range.len())
            };
            // SAFETY: inside the caller's data, or inside a slot that its owner has staged and not yet reused. Nothing
            // writes to it during the slice's lifetime: the sink below runs once a block is complete.
            unsafe { std::slice::from_raw_parts(from, range.len()) }
        };
        tree_reduce(0..shards.shards(), shards.walk(), part.len(), reduction, source, |at, values| {
            // SAFETY: inside the caller's data and this rank's own slot, at the piece that only this rank writes.
            unsafe {
                copy(values.as_ptr(), data.add(part.start + at), values.len());
                if let Some((slot, start)) = &result {
                    slot.write(start + at, values.as_ptr(), values.len());
                }
            }
        });
    }

    /// Copies data from the slots of `senders` to its places in the output, where this rank's own data lies already.
    fn gather(&mut self, running: &RunningOperation, senders: Range<usize>) -> Result<(), Stop> {
        let rank = self.members.rank;
        let ranks = self.members.world_size();
        let part = |sender: usize| running.operation.part_from(sender, ranks);
        let chunks = senders.clone().map(|sender| part(sender).len()).max().unwrap_or(0).div_ceil(SLOT_BYTES);
        let range = |sender: usize, step: usize| part_of(&part(sender), step * SLOT_BYTES, SLOT_BYTES);
        let output = running.operation.output;

        for step in 0..chunks + 1 {
            if step < chunks {
                let chunk = self.chunk + step as u64;
                if senders.contains(&rank) {
                    self.wait_for_slot(running, chunk)?;
                    let range = range(rank, step);
                    // SAFETY: inside the caller's output, and this rank's own slot, which no rank reads yet.
                    unsafe {
                        self.region.slot(rank, chunk).write(0, output.add(range.start).cast_const(), range.len())
                    };
                    self.traffic.sent += range.len() as u64;
                }
                self.publish_staged(running, chunk, step == 0)?;
            }
            if let Some(step) = step.checked_sub(1) {
                let chunk = self.chunk + step as u64;
                for sender in senders.clone().filter(|&sender| sender != rank) {
                    self.wait_for(running, sender, |counters| &counters.staged, chunk + 1)?;
                    let range = range(sender, step);
                    // SAFETY: inside a slot that its owner has staged and keeps until it is consumed, and inside the
                    // output.
                    unsafe { self.region.slot(sender, chunk).read(0, output.add(range.start), range.len()) };
                    self.traffic.received += range.len() as u64;
                }
                self.own().publish(&self.own().reduced, chunk + 1);
                self.own().publish(&self.own().consumed, chunk + 1);
            }
        }
        self.chunk += chunks as u64;
        Ok(())
    }
}

impl Transport for SharedTransport {
    fn execute(&mut self, running: &RunningOperation) -> Result<(), Stop> {
        let operation = running.operation;
        if operation.count == 0 {
            self.enter(running);
            return self.agree(running);
        }
        match operation.kind {
            Kind::AllReduce if operation.algorithm != Algorithm::Tree => {
                with_element!(operation.dtype, T => self.all_reduce_in_rounds::<T>(running))
            }
            Kind::AllReduce => with_element!(operation.dtype, T => self.all_reduce::<T>(running)),
            Kind::Reduce | Kind::ReduceScatter => {
                with_element!(operation.dtype, T => self.reduce_to_owners::<T>(running))
            }
            Kind::AllGather | Kind::AllGatherPieces => {
                let ranks = self.members.world_size();
                operation.place_own_part(self.members.rank, ranks);
                self.gather(running, 0..ranks)
            }
            Kind::Gather | Kind::Scatter | Kind::AllToAll => self.exchange(running),
            Kind::Broadcast | Kind::Transfer | Kind::Barrier => {
                self.gather(running, operation.root..operation.root + 1)
            }
        }
    }

    fn buffer_bytes(&self) -> BufferBytes {
        let own = SLOTS * SLOT_BYTES;
        BufferBytes { own, of_local_peers: (self.members.world_size() - 1) * own }
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn region(&self) -> Option<Arc<Region>> {
        Some(self.region.clone())
    }

    fn close(&mut self, _: &Failure, _: Duration) {
        self.own().leave();
    }
}
