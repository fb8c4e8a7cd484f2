//! An object that is read from its start to its end: what follows is fetched before it is needed,
//! several runs of pieces at a time.
//!
//! Archives are indexed by it. Reading their headers alone would save no time: each says where the
//! next one is, so a sample would cost the latency of a request.
//!
//! As with [`Ahead`](crate::Ahead), nothing depends on it but time: a run that could not be fetched
//! ahead is left to the reader, whose attempts and errors are its own. What was fetched goes to the
//! reader without a detour, so a cache without room costs no more requests.

use std::collections::VecDeque;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crate::cache::PIECE;
use crate::object::RUN;
use crate::permits::{Permit, RUNS};
use crate::{Object, RemoteError};

/// Reads an object from its start to its end, and much at a time. Dropped, it begins no more requests; those under way still end.
#[derive(Debug)]
pub struct Reader {
    object: Arc<Object>,
    position: u64,
    /// Bytes of the object from `start` on.
    window: Vec<u8>,
    start: u64,
    /// What is fetched ahead, in order.
    ahead: VecDeque<Run>,
    /// Runs that this reader may fetch ahead.
    reach: usize,
}

/// Neighbouring pieces that a thread fetches. It may find fewer of them than were asked for.
#[derive(Debug)]
struct Run {
    pieces: Range<u64>,
    thread: JoinHandle<(Vec<u8>, Permit)>,
}

impl Object {
    /// Reads the object from its start to its end, much at a time, and fetches ahead.
    pub fn reader(self: &Arc<Self>) -> Reader {
        Reader::new(self.clone())
    }
}

impl Reader {
    pub(crate) fn new(object: Arc<Object>) -> Self {
        Reader { object, position: 0, window: Vec::new(), start: 0, ahead: VecDeque::new(), reach: RUNS }
    }

    /// The end of the window.
    fn end(&self) -> u64 {
        self.start + self.window.len() as u64
    }

    fn has_position(&self) -> bool {
        (self.start..self.end()).contains(&self.position)
    }

    /// Moves the window to the position, which lies in the object.
    fn advance(&mut self) -> Result<(), RemoteError> {
        let piece = self.position / PIECE;
        // Where much is skipped, what follows may be skipped as well.
        let is_near = piece < self.end().div_ceil(PIECE) + RUN;
        self.reach = if is_near { (2 * self.reach).clamp(1, RUNS) } else { 0 };
        self.window = Vec::new();
        while let Some(run) = self.ahead.pop_front_if(|run| run.pieces.start <= piece) {
            if run.pieces.contains(&piece) {
                // One whose thread has ended in a panic has found nothing.
                self.window = run.thread.join().map_or(Vec::new(), |(found, _)| found);
                self.start = run.pieces.start * PIECE;
                if !self.has_position() {
                    // A server that fails, or is slow, is asked for less at a time.
                    self.reach = 0;
                }
            }
        }
        self.fetch_ahead(if self.has_position() { self.end().div_ceil(PIECE) } else { piece + RUN });
        if !self.has_position() {
            let end = self.ahead.front().map_or(piece + RUN, |run| run.pieces.start);
            self.window = self.object.run(piece, end - 1)?;
            self.start = piece * PIECE;
        }
        Ok(())
    }

    /// Begins to fetch what follows the runs that are fetched already, or the pieces before `next`.
    fn fetch_ahead(&mut self, next: u64) {
        let mut next = self.ahead.back().map_or(next, |run| run.pieces.end);
        let end = self.object.length().div_ceil(PIECE);
        while self.ahead.len() < self.reach && next < end {
            let Some(permit) = self.object.permit() else { break };
            let object = self.object.clone();
            let pieces = next..end.min(next + RUN);
            next = pieces.end;
            let own = pieces.clone();
            let thread = thread::Builder::new().name("run-ahead".to_owned());
            match thread.spawn(move || (object.run_ahead(own), permit)) {
                Ok(thread) => self.ahead.push_back(Run { pieces, thread }),
                // Without threads nothing is fetched ahead.
                Err(_) => break,
            }
        }
    }
}

impl Read for Reader {
    /// The source of an error is a [`RemoteError`].
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if bytes.is_empty() || self.position >= self.object.length() {
            return Ok(0);
        }
        if !self.has_position() {
            self.advance().map_err(io::Error::other)?;
        }
        let found = &self.window[(self.position - self.start) as usize..];
        let length = found.len().min(bytes.len());
        bytes[..length].copy_from_slice(&found[..length]);
        self.position += length as u64;
        Ok(length)
    }
}

impl Seek for Reader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let place = match to {
            SeekFrom::Start(place) => Some(place),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.object.length().checked_add_signed(by),
        };
        self.position = place.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}
