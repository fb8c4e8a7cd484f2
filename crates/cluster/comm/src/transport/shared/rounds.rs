//! All-reduces in rounds: each rank stages what it sends in its slot, and the receiver alone reads it.

use super::{SLOT_BYTES, SharedTransport};
use crate::element::Element;
use crate::pieces::part_of;
use crate::rounds::{Receipt, Rounds, add_up_partials, take};
use crate::transport::{RunningOperation, Stop};

impl SharedTransport {
    pub(super) fn all_reduce_in_rounds<T: Element>(&mut self, running: &RunningOperation) -> Result<(), Stop> {
        let (operation, rank) = (running.operation, self.members.rank);
        let data = operation.output.cast::<T>();
        let chunk_len = SLOT_BYTES / size_of::<T>();
        // SAFETY: the caller's data, which is this operation's.
        unsafe { add_up_partials::<T>(operation, rank) };
        let rounds = Rounds::new(operation, rank, &self.nodes);
        let (mut chunk, mut traffic) = (self.chunk, self.traffic);
        for round in (0..rounds.len()).map(|number| rounds.get(number)) {
            for step in 0..round.longest.div_ceil(chunk_len) {
                let part = |range| part_of(range, step * chunk_len, chunk_len);
                self.wait_for_slot(running, chunk)?;
                if let Some((_, range)) = &round.send {
                    let part = part(range);
                    // SAFETY: inside the caller's data, and this rank's own slot, which no rank reads yet.
                    unsafe { self.region.slot(rank, chunk).write(0, data.add(part.start).cast_const(), part.len()) };
                    traffic.sent += (size_of::<T>() * part.len()) as u64;
                }
                self.publish_staged(running, chunk, chunk == self.chunk)?;
                if let Some(Receipt { from, range, how }) = &round.receive {
                    let part = part(range);
                    if !part.is_empty() {
                        self.wait_for(running, *from, |counters| &counters.staged, chunk + 1)?;
                        let values = self.region.slot::<T>(*from, chunk).values(0, part.len());
                        // SAFETY: inside a slot that its owner has staged and keeps until it is consumed, and inside the
                        // caller's data.
                        unsafe { take(*how, operation.reduction, values, data.add(part.start), part.len()) };
                        traffic.received += (size_of::<T>() * part.len()) as u64;
                    }
                }
                chunk += 1;
                self.own().publish(&self.own().consumed, chunk);
            }
        }
        (self.chunk, self.traffic) = (chunk, traffic);
        Ok(())
    }
}
