//! All-gather and broadcast: every rank's part goes once to each other node, divided among the channels.
//!
//! In an all-gather a node sends its part to every other. Where one rank's data go to all, each channel passes them on along a
//! binomial tree of nodes, chunk by chunk, so the sender's node sends them no more often than the logarithm of the nodes.

use std::ops::Range;

use super::{GRACE, HierarchicalTransport, WINDOWS};
use crate::binomial::{depth, parent};
use crate::cause::CauseKind;
use crate::operation::{Kind, Operation};
use crate::pieces::{intersection, piece};
use crate::transport::queue::Bytes;
use crate::transport::{RunningOperation, Stop};

impl HierarchicalTransport {
    /// Copies the senders' parts of the output to all ranks, in chunks over the whole output. A rank stages its own part,
    /// sends its channels of what its node has, and passes on to its node what comes in its channels.
    pub(super) fn gather(&mut self, running: &RunningOperation) -> Result<(), Stop> {
        let operation = running.operation;
        let rank = self.members.rank;
        let ranks = self.members.world_size();
        operation.place_own_part(rank, ranks);
        let total = operation.part_from(ranks - 1, ranks).end;
        let chunk_len = self.segments.chunk;
        let chunks = total.div_ceil(chunk_len);
        let range = |step: usize| step * chunk_len..total.min((step + 1) * chunk_len);

        for step in 0..chunks + 2 {
            if step < chunks {
                self.stage_part(running, step, &range(step))?;
                if step == 0 {
                    self.agree_on_node(running)?;
                }
                self.send_parts(running, step, &range(step))?;
                if step == 0 {
                    self.agree_with_peers(running)?;
                }
                self.expect_parts(running, step, &range(step));
            }
            if let Some(step) = step.checked_sub(1).filter(|&step| step < chunks) {
                let missing = self.wait(running, |own| own.peers.missing_in(step % WINDOWS));
                missing.map_err(|stop| self.word_of_those_above(running, stop, 1))?;
                self.forward(running, step, &range(step))?;
                self.pass_on(operation, step, &range(step));
            }
            if let Some(step) = step.checked_sub(2) {
                let collected = self.collect_parts(running, step, &range(step));
                collected.map_err(|stop| self.word_of_those_above(running, stop, 0))?;
            }
        }
        self.chunk += chunks as u64;
        Ok(())
    }

    /// Copies this rank's part to its slot.
    fn stage_part(&mut self, running: &RunningOperation, step: usize, range: &Range<usize>) -> Result<(), Stop> {
        if self.is_alone() {
            return Ok(());
        }
        let chunk = self.chunk + step as u64;
        self.wait_for_slot(running, chunk)?;
        let part = intersection(&sent_by(running.operation, self.members.rank, self.members.world_size()), range);
        let from = running.operation.output.wrapping_add(part.start).cast_const();
        // SAFETY: inside the caller's output, and this rank's own slot, which no rank reads yet.
        unsafe { self.slot(self.place, chunk).write(part.start - range.start, from, part.len()) };
        self.own().publish(&self.own().staged, chunk + 1);
        Ok(())
    }

    /// Takes over what the node's ranks have staged, and sends this rank's channels of it to the other nodes.
    fn send_parts(&mut self, running: &RunningOperation, step: usize, range: &Range<usize>) -> Result<(), Stop> {
        let operation = running.operation;
        let chunk = self.chunk + step as u64;
        let ranks = self.members.world_size();
        for local_peer in 0..self.local_peers.len() {
            let (rank, place) = self.local_peers[local_peer];
            let part = intersection(&sent_by(operation, rank, ranks), range);
            if !part.is_empty() {
                self.wait_for_local_peer(running, local_peer, |counters| &counters.staged, chunk + 1)?;
                let to = operation.output.wrapping_add(part.start);
                // SAFETY: inside a slot that its owner has staged and keeps until it is consumed, and inside the output.
                unsafe { self.slot(place, chunk).read(part.start - range.start, to, part.len()) };
            }
        }
        self.wait(running, |own| own.peers.unsent_in(step % WINDOWS))?;
        let node = self.topology.node_of(self.members.rank);
        self.send_runs(operation, step, range, |origin| origin == node);
        self.progress(running)
    }

    /// Sends what has come from other nodes to those below this one in the tree. Room in the queues was waited for before
    /// this was expected.
    fn forward(&mut self, running: &RunningOperation, step: usize, range: &Range<usize>) -> Result<(), Stop> {
        if !running.operation.has_one_sender() {
            return Ok(());
        }
        let node = self.topology.node_of(self.members.rank);
        self.send_runs(running.operation, step, range, |origin| origin != node);
        self.progress(running)
    }

    /// Sends this rank's channels of what some runs send, chosen by their nodes.
    fn send_runs(&mut self, operation: &Operation, step: usize, range: &Range<usize>, is_sent: impl Fn(usize) -> bool) {
        let node = self.topology.node_of(self.members.rank);
        for at in 0..self.peers.all.len() {
            let channels = self.channels_with(self.peers.all[at].rank, range);
            let to = self.topology.node_of(self.peers.all[at].rank);
            for run in 0..self.topology.runs().len() {
                let origin = self.topology.runs()[run].node;
                if is_sent(origin) && self.source(operation, origin, to) == Some(node) {
                    let part = intersection(&self.sent_by_run(operation, run), &channels);
                    // SAFETY: the caller's output, where this part remains unchanged until the operation is done.
                    unsafe { self.peers.all[at].sending.begin(Bytes::of(operation.output, part)) };
                }
            }
            let peer = &mut self.peers.all[at];
            peer.sent_at[step % WINDOWS] = peer.sending.begun();
        }
    }

    /// The node from which another one gets what ranks of `origin` send.
    fn source(&self, operation: &Operation, origin: usize, to: usize) -> Option<usize> {
        match operation.has_one_sender() {
            true => parent(to, origin, self.topology.nodes().len()),
            false => (to != origin).then_some(origin),
        }
    }

    /// Leaves the word to ranks nearer to the sender if one of them speaks soon: the rank that this one waits for, so many nodes
    /// above, may wait itself, and so is not the one to blame.
    fn word_of_those_above(&self, running: &RunningOperation, stop: Stop, above: u32) -> Stop {
        let operation = running.operation;
        let is_late = matches!(&stop, Stop::Raise(cause) if cause.kind == CauseKind::Timeout);
        if !is_late || !operation.has_one_sender() {
            return stop;
        }
        let [node, root] = [self.members.rank, operation.root].map(|rank| self.topology.node_of(rank));
        let waiting = depth(node, root, self.topology.nodes().len()).saturating_sub(above);
        if running.failure.fails_within(GRACE * waiting) { Stop::Failed } else { stop }
    }

    /// Expects the other nodes' parts in this rank's channels.
    fn expect_parts(&mut self, running: &RunningOperation, step: usize, range: &Range<usize>) {
        let node = self.topology.node_of(self.members.rank);
        for at in 0..self.peers.all.len() {
            let channels = self.channels_with(self.peers.all[at].rank, range);
            let from = self.topology.node_of(self.peers.all[at].rank);
            for run in 0..self.topology.runs().len() {
                if self.source(running.operation, self.topology.runs()[run].node, node) == Some(from) {
                    let part = intersection(&self.sent_by_run(running.operation, run), &channels);
                    let part = self.received(running.operation.output, part);
                    // SAFETY: the caller's output, where no other code uses this part until it has come. Any bytes are a
                    // valid value.
                    unsafe { self.peers.all[at].receiving.begin(part) };
                }
            }
            let peer = &mut self.peers.all[at];
            peer.come_at[step % WINDOWS] = peer.receiving.begun();
        }
    }

    /// Copies what has come to this rank's slot, for its node.
    fn pass_on(&mut self, operation: &Operation, step: usize, range: &Range<usize>) {
        if self.is_alone() {
            return;
        }
        let chunk = self.chunk + step as u64;
        self.copy_foreign(operation, self.members.rank, range, |part| {
            let from = operation.output.wrapping_add(part.start).cast_const();
            // SAFETY: inside the caller's output, and inside this rank's own slot: the node's own parts lie elsewhere in it.
            unsafe { self.slot(self.place, chunk).write(part.start - range.start, from, part.len()) };
        });
        self.own().publish(&self.own().reduced, chunk + 1);
    }

    /// Copies what has come to the other ranks of the node.
    fn collect_parts(&mut self, running: &RunningOperation, step: usize, range: &Range<usize>) -> Result<(), Stop> {
        if self.is_alone() {
            return Ok(());
        }
        let chunk = self.chunk + step as u64;
        for local_peer in 0..self.local_peers.len() {
            let (rank, place) = self.local_peers[local_peer];
            self.wait_for_local_peer(running, local_peer, |counters| &counters.reduced, chunk + 1)?;
            self.copy_foreign(running.operation, rank, range, |part| {
                let to = running.operation.output.wrapping_add(part.start);
                // SAFETY: inside the output, and inside a slot that its owner keeps until it is consumed.
                unsafe { self.slot(place, chunk).read(part.start - range.start, to, part.len()) };
            });
        }
        self.own().publish(&self.own().consumed, chunk + 1);
        Ok(())
    }

    /// Calls `copy` with every part of the range that comes from another node in the channels of `rank`.
    fn copy_foreign(&self, operation: &Operation, rank: usize, range: &Range<usize>, copy: impl Fn(Range<usize>)) {
        let channels = self.channels_in(self.topology.channels_of(rank), range);
        let node = self.topology.node_of(rank);
        let foreign = self.topology.runs().iter().enumerate().filter(|(_, run)| run.node != node);
        foreign.for_each(|(run, _)| copy(intersection(&self.sent_by_run(operation, run), &channels)));
    }

    /// The part of the range that travels between this rank and a peer.
    fn channels_with(&self, peer: usize, range: &Range<usize>) -> Range<usize> {
        self.channels_in(self.topology.common(self.members.rank, peer), range)
    }

    fn channels_in(&self, channels: Range<usize>, range: &Range<usize>) -> Range<usize> {
        let cut = |channel: usize| range.start + piece(range.len(), 1, channel, self.topology.channels()).start;
        cut(channels.start)..cut(channels.end)
    }

    /// What the ranks of a run send together.
    fn sent_by_run(&self, operation: &Operation, run: usize) -> Range<usize> {
        let members = &self.topology.runs()[run].ranks;
        let ranks = self.members.world_size();
        match operation.kind {
            Kind::Broadcast | Kind::Transfer | Kind::Scatter if members.contains(&operation.root) => {
                sent_by(operation, operation.root, ranks)
            }
            Kind::Broadcast | Kind::Transfer | Kind::Scatter => 0..0,
            _ => sent_by(operation, members.start, ranks).start..sent_by(operation, members.end - 1, ranks).end,
        }
    }
}

/// The bytes of the output that a rank sends.
fn sent_by(operation: &Operation, rank: usize, ranks: usize) -> Range<usize> {
    match operation.kind {
        Kind::Broadcast | Kind::Transfer | Kind::Scatter if rank != operation.root => 0..0,
        _ => operation.part_from(rank, ranks),
    }
}
