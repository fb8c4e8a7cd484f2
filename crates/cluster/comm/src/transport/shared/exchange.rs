//! Gather, scatter and all-to-all: each rank stages what it has for every other in a part of its slot, and the receiver alone
//! reads it.

use super::{SLOT_BYTES, SharedTransport, copy};
use crate::operation::Kind;
use crate::transport::{RunningOperation, Stop};

impl SharedTransport {
    pub(super) fn exchange(&mut self, running: &RunningOperation) -> Result<(), Stop> {
        let operation = running.operation;
        let rank = self.members.rank;
        let ranks = self.members.world_size();
        let each = operation.count * operation.dtype.size();
        if let Some((from, to)) = operation.exchanged(rank, rank) {
            // SAFETY: both are the operation's memory, with as many bytes for each rank.
            unsafe { copy(operation.input.wrapping_add(from), operation.output.wrapping_add(to), each) };
        }
        // Bytes of a slot for each receiver, and where they begin.
        let width = SLOT_BYTES / if operation.kind == Kind::Gather { 1 } else { ranks };
        assert!(width > 0, "a slot cannot be divided among {ranks} ranks of one host");
        let place = |receiver: usize| if operation.kind == Kind::Gather { 0 } else { receiver * width };
        let chunks = each.div_ceil(width);
        let len = |step: usize| width.min(each - step * width);

        for step in 0..chunks + 1 {
            if step < chunks {
                let chunk = self.chunk + step as u64;
                self.wait_for_slot(running, chunk)?;
                let slot = self.region.slot::<u8>(rank, chunk);
                for receiver in (0..ranks).filter(|&receiver| receiver != rank) {
                    if let Some((from, _)) = operation.exchanged(rank, receiver) {
                        let from = operation.input.wrapping_add(from + step * width);
                        // SAFETY: inside the caller's input, and this rank's own slot, which no rank reads yet.
                        unsafe { slot.write(place(receiver), from, len(step)) };
                        self.traffic.sent += len(step) as u64;
                    }
                }
                self.publish_staged(running, chunk, step == 0)?;
            }
            if let Some(step) = step.checked_sub(1) {
                let chunk = self.chunk + step as u64;
                for sender in (1..ranks).map(|step| (rank + step) % ranks) {
                    if let Some((_, to)) = operation.exchanged(sender, rank) {
                        self.wait_for(running, sender, |counters| &counters.staged, chunk + 1)?;
                        let slot = self.region.slot::<u8>(sender, chunk);
                        let to = operation.output.wrapping_add(to + step * width);
                        // SAFETY: inside a slot that its owner has staged and keeps until it is consumed, and inside the output.
                        unsafe { slot.read(place(rank), to, len(step)) };
                        self.traffic.received += len(step) as u64;
                    }
                }
                self.own().publish(&self.own().reduced, chunk + 1);
                self.own().publish(&self.own().consumed, chunk + 1);
            }
        }
        self.chunk += chunks as u64;
        Ok(())
    }
}
