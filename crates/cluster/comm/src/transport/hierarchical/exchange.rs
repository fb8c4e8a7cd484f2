//! Gather, scatter and all-to-all: ranks that differ in what they get.
//!
//! What all ranks send goes to all of them, into memory of its own, and each takes its part of it. Most ranks of different nodes have
//! no connection of their own, and the ranks of a node share what comes to it.

use super::{HierarchicalTransport, copy};
use crate::cause::CauseKind;
use crate::memory::Mapping;
use crate::operation::{Kind, Operation};
use crate::transport::{RunningOperation, Stop};

impl HierarchicalTransport {
    pub(super) fn exchange(&mut self, running: &RunningOperation) -> Result<(), Stop> {
        let operation = running.operation;
        let rank = self.members.rank;
        let ranks = self.members.world_size();
        let total = operation.part_from(ranks - 1, ranks).end;
        let sent = Mapping::private(total).map_err(|error| {
            let message = format!("no memory for {total} bytes: {error}");
            self.members.blame(rank, CauseKind::Error, operation, message)
        })?;
        if operation.kind != Kind::Scatter || rank == operation.root {
            let own = operation.part_from(rank, ranks);
            // SAFETY: the input has so many bytes, and the new memory has this part.
            unsafe { copy(operation.input, sent.as_ptr().wrapping_add(own.start), own.len()) };
        }
        let gathering = Operation { output: sent.as_ptr(), ..*operation };
        self.execute_in_place(&RunningOperation::new(&gathering, running.failure, running.options))?;
        for sender in 0..ranks {
            if let Some((from, to)) = operation.exchanged(sender, rank) {
                // Of a scatter there is one sender, whose part begins at 0.
                let from = sent.as_ptr().wrapping_add(operation.part_from(sender, ranks).start + from);
                let each = operation.count * operation.dtype.size();
                // SAFETY: inside what has been gathered, and inside the output, which has as many bytes from each sender.
                unsafe { copy(from.cast_const(), operation.output.wrapping_add(to), each) };
            }
        }
        Ok(())
    }
}
