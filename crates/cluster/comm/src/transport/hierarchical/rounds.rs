//! All-reduces in rounds: messages between ranks of different nodes, and slots between ranks of one node.

use super::{HierarchicalTransport, WINDOWS};
use crate::cause::CauseKind;
use crate::element::Element;
use crate::pieces::part_of;
use crate::rounds::{PairwiseExchange, Receipt, Rounds, Take, add_up_partials, take};
use crate::transport::queue::Bytes;
use crate::transport::{RunningOperation, Stop};

/// A chunk of a round.
struct Step {
    round: PairwiseExchange,
    /// Where its elements begin in what is sent, and in what is received.
    start: usize,
    /// Its number among the chunks of all operations.
    chunk: u64,
}

impl HierarchicalTransport {
    /// While values of one step are on their way, those of the next one leave.
    pub(super) fn all_reduce_in_rounds<T: Element>(&mut self, running: &RunningOperation) -> Result<(), Stop> {
        let (operation, rank) = (running.operation, self.members.rank);
        if !self.topology.connects_for(operation.algorithm) {
            let formed = self.topology.choice();
            let asked = operation.algorithm;
            let message = format!("its group's ranks are connected for {formed} alone, not for {asked}");
            return Err(self.members.blame(rank, CauseKind::Error, operation, message));
        }
        let chunk_len = self.segments.chunk / operation.dtype.size();
        // SAFETY: the caller's data, which is this operation's.
        unsafe { add_up_partials::<T>(operation, rank) };
        let mut chunk = self.chunk;
        for number in 0..Rounds::new(operation, rank, self.topology.nodes()).len() {
            let round = Rounds::new(operation, rank, self.topology.nodes()).get(number);
            // What is still being sent may change from now on.
            self.wait(running, |own| own.peers.unsent())?;
            let mut earlier: Option<Step> = None;
            for start in (0..round.longest).step_by(chunk_len) {
                let step = Step { round: round.clone(), start, chunk };
                self.begin_step::<T>(running, &step, chunk_len)?;
                if let Some(step) = earlier.replace(step) {
                    self.end_step::<T>(running, &step, chunk_len)?;
                }
                chunk += 1;
            }
            if let Some(step) = earlier {
                self.end_step::<T>(running, &step, chunk_len)?;
            }
        }
        self.chunk = chunk;
        Ok(())
    }

    /// Sends or stages this rank's values, and expects the other's.
    fn begin_step<T: Element>(
        &mut self,
        running: &RunningOperation,
        step: &Step,
        chunk_len: usize,
    ) -> Result<(), Stop> {
        let data = running.operation.output.cast::<T>();
        let window = step.chunk as usize % WINDOWS;
        let is_first = step.chunk == self.chunk;
        let sent = step.round.send.as_ref().map(|(to, range)| (*to, part_of(range, step.start, chunk_len)));
        if !self.is_alone() {
            self.wait_for_slot(running, step.chunk)?;
            if let Some((_, part)) = sent.clone().filter(|(to, _)| self.is_on_node(*to)) {
                // SAFETY: inside the caller's data, and this rank's own slot, which no rank reads yet.
                unsafe { self.slot(self.place, step.chunk).write(0, data.add(part.start).cast_const(), part.len()) };
            }
            self.own().publish(&self.own().staged, step.chunk + 1);
        }
        if is_first {
            self.agree_on_node(running)?;
        }
        if let Some((to, part)) = sent.filter(|(to, _)| !self.is_on_node(*to)) {
            let peer = self.peer(to);
            // SAFETY: the caller's data, which changes there only in a later round, before which this message is complete.
            unsafe { self.peers.all[peer].sending.begin(Bytes::of(data, part)) };
            self.progress(running)?;
        }
        if is_first {
            self.agree_with_peers(running)?;
        }
        if let Some(Receipt { from, range, how }) = &step.round.receive
            && !self.is_on_node(*from)
        {
            let part = part_of(range, step.start, chunk_len);
            let bytes = match how {
                Take::Copy => self.received(data, part),
                Take::Left | Take::Right => Bytes::own(self.taken(window).cast::<T>(), 0..part.len()),
            };
            let peer = self.peer(*from);
            let peer = &mut self.peers.all[peer];
            // SAFETY: the transport's memory, of which this window's values have been taken; or the caller's data, where this
            // rank's own values are no longer needed. Any bytes are a valid value.
            unsafe { peer.receiving.begin(bytes) };
            peer.come_at[window] = peer.receiving.begun();
        }
        Ok(())
    }

    /// Takes the other rank's values.
    fn end_step<T: Element>(&mut self, running: &RunningOperation, step: &Step, chunk_len: usize) -> Result<(), Stop> {
        let data = running.operation.output.cast::<T>();
        let window = step.chunk as usize % WINDOWS;
        if let Some(Receipt { from, range, how }) = &step.round.receive {
            let from = *from;
            let how = *how;
            let part = part_of(range, step.start, chunk_len);
            let values = if self.is_on_node(from) {
                let place = self.topology.place_of(from);
                let staged = |own: &Self| own.region.counters(place).staged.load(std::sync::atomic::Ordering::Acquire);
                self.wait(running, |own| (!part.is_empty() && staged(own) <= step.chunk).then_some(from))?;
                Some(self.slot::<T>(place, step.chunk).values(0, part.len()))
            } else {
                let peer = self.peer(from);
                self.wait(running, |own| {
                    let peer = &own.peers.all[peer];
                    (peer.receiving.complete() < peer.come_at[window]).then_some(from)
                })?;
                // What replaces this rank's values has come to their place.
                (how != Take::Copy).then(|| self.taken(window).cast::<T>().cast_const())
            };
            if let Some(values) = values {
                // SAFETY: inside a slot that its owner has staged and keeps until it is consumed, or the transport's memory,
                // where these values have come; and inside the caller's data.
                unsafe { take(how, running.operation.reduction, values, data.add(part.start), part.len()) };
            }
        }
        if !self.is_alone() {
            self.own().publish(&self.own().consumed, step.chunk + 1);
        }
        Ok(())
    }

    /// The place in `peers` of a rank of another node.
    fn peer(&self, rank: usize) -> usize {
        let found = self.peers.all.binary_search_by_key(&rank, |peer| peer.rank);
        found.expect("a rank is connected with its partners on other nodes")
    }
}
