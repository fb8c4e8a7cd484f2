//! The messages of one direction between two ranks. Both ends know their lengths and their order, so a message is only its
//! bytes.
//!
//! Messages wait in a queue, so that a connection has work while its rank computes. Nothing here allocates beyond the room
//! of a queue.

use std::collections::VecDeque;
use std::ops::Range;

/// Memory that remains to be sent or received.
#[derive(Clone, Copy)]
pub(crate) struct Bytes {
    pub start: *mut u8,
    pub len: usize,
    /// Whether it stays valid even if the operation fails: it is the transport's, or registered with it.
    pub is_lasting: bool,
}

impl Bytes {
    /// Memory of an operation.
    pub(crate) fn of<T>(start: *const T, range: Range<usize>) -> Self {
        let start = start.wrapping_add(range.start).cast_mut().cast();
        Bytes { start, len: range.len() * size_of::<T>(), is_lasting: false }
    }

    /// Memory of the transport.
    pub(crate) fn own<T>(start: *const T, range: Range<usize>) -> Self {
        Bytes { is_lasting: true, ..Bytes::of(start, range) }
    }
}

/// The messages that are not complete. They end in the order in which they began.
pub(crate) struct Queue {
    /// What is left of them.
    left: VecDeque<Bytes>,
    begun: u64,
}

// SAFETY: the pointers are used only during an operation, which owns the memory.
unsafe impl Send for Queue {}

impl Queue {
    /// `room` is the number of messages that the queue holds without allocating.
    pub(crate) fn new(room: usize) -> Self {
        Queue { left: VecDeque::with_capacity(room), begun: 0 }
    }

    /// Adds a message. Empty ones are not sent, and are complete at once.
    ///
    /// # Safety
    ///
    /// The bytes must stay valid until the message is complete, or no further progress is asked for. Until then those to be
    /// sent must not change, and those to be received must be used by no other code. Any bytes must be a valid value of what
    /// is received.
    pub(crate) unsafe fn begin(&mut self, bytes: Bytes) {
        if bytes.len > 0 {
            self.left.push_back(bytes);
            self.begun += 1;
        }
    }

    /// Messages that have begun so far; empty ones do not count.
    pub(crate) fn begun(&self) -> u64 {
        self.begun
    }

    /// Messages that are complete.
    pub(crate) fn complete(&self) -> u64 {
        self.begun - self.left.len() as u64
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.left.is_empty()
    }

    /// What is left of a message, by its place among those that are not complete.
    pub(crate) fn get(&self, place: usize) -> Option<Bytes> {
        self.left.get(place).copied()
    }

    /// So many bytes of the first message are done.
    pub(crate) fn advance(&mut self, done: usize) {
        if let Some(message) = self.left.front_mut() {
            message.start = message.start.wrapping_add(done);
            message.len -= done;
            if message.len == 0 {
                self.left.pop_front();
            }
        }
    }
}
