//! Passing the workers' standard error on, without ever waiting for whoever reads ours.

use std::io::{self, Write};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Bytes moved at once. A pipe that reports room takes at least this much (`PIPE_BUF`) without blocking.
pub(crate) const PIECE: usize = 4096;

/// Our standard error. While it has no room, the workers' pipes are left to fill, and hold the workers back as a
/// terminal would; the launcher itself goes on watching.
#[derive(Default)]
pub(crate) struct Console {
    pending: Vec<u8>,
    /// Nobody reads any more.
    closed: bool,
}

impl Console {
    /// Whether there is room for another piece.
    pub(crate) fn is_ready(&self) -> bool {
        self.pending.is_empty()
    }

    /// Takes a piece; only while ready.
    pub(crate) fn pass_on(&mut self, piece: &[u8]) {
        if !self.closed {
            self.pending.extend_from_slice(piece);
            self.write_if_room();
        }
    }

    /// Writes what waits, if that needs no waiting.
    pub(crate) fn write_if_room(&mut self) {
        let stderr = io::stderr();
        let mut room = [PollFd::new(&stderr, PollFlags::OUT)];
        while !self.pending.is_empty()
            && poll(&mut room, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|n| n > 0)
        {
            match rustix::io::write(&stderr, &self.pending) {
                Ok(written) => drop(self.pending.drain(..written)),
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => return,
                Err(_) => {
                    self.closed = true;
                    self.pending.clear();
                }
            }
        }
    }

    /// Writes what waits, however long it takes: for the end, when nothing is left to watch.
    pub(crate) fn flush(&mut self) {
        // Nobody to tell where the place for messages is gone.
        let _ = io::stderr().write_all(&self.pending);
        self.pending.clear();
    }
}
