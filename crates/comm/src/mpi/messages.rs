//! The messages between ranks, by MPI: each is sent and received as one, in the order in which it began.
//!
//! MPI may write to memory that it was given to receive into until the message is complete, even if the operation has
//! failed and its caller has the memory back. So MPI receives into the transport's own memory, which is kept for ever if
//! need be, and what belongs to the operation is copied from there. What is sent is only read.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::{Duration, Instant};

use enmasse_tensor::AlignedBuffer;

use super::Mpi;
use super::process::{Parting, Process};
use super::sys::Handle;
use crate::failure::Failure;
use crate::operation::{HEADER_BYTES, Header};
use crate::transport::hierarchical::{Links, Peer, SLOT_BYTES};
use crate::transport::queue::{Bytes, Queue};

/// Messages of a direction that MPI knows of at a time; later ones wait in their queue.
const AT_ONCE: usize = 16;
/// Room for what a peer sends to an operation's memory: two of the largest messages.
const STAGED: usize = 2 * SLOT_BYTES;
/// How long a rank asks MPI again and again after the last message. MPI moves data only while it is asked.
const EAGER: Duration = Duration::from_micros(200);
/// How long it sleeps between two questions afterwards.
const NAP: Duration = Duration::from_micros(100);

/// The messages of one rank.
pub(super) struct Messages<H: Handle> {
    mpi: Arc<Mpi<H>>,
    tag: c_int,
    /// One for each peer, in rank order.
    lines: Vec<Line<H>>,
    /// Since when no message has ended, once the rank waits for one.
    quiet: Option<Instant>,
}

/// What MPI has of the messages to and from one peer: the first ones of each queue.
struct Line<H> {
    /// Its number in MPI.
    peer: c_int,
    sent: VecDeque<H>,
    received: VecDeque<Receipt<H>>,
    /// Where messages for an operation's memory arrive. It may have to outlive the line.
    staging: ManuallyDrop<AlignedBuffer>,
    /// Where the next one begins.
    staged: usize,
}

struct Receipt<H> {
    request: H,
    /// Where it arrives, if that is not its own place.
    at: Option<usize>,
}

impl<H: Handle> Messages<H> {
    /// Messages to and from the processes with these numbers.
    pub fn new(mpi: Arc<Mpi<H>>, peers: Vec<usize>, tag: c_int) -> io::Result<Self> {
        let line = |peer: usize| {
            let peer = c_int::try_from(peer).map_err(io::Error::other)?;
            // Pages that no message touches use no memory.
            let staging = ManuallyDrop::new(AlignedBuffer::zeroed(STAGED)?);
            let (sent, received) = (VecDeque::with_capacity(AT_ONCE), VecDeque::with_capacity(AT_ONCE));
            Ok(Line { peer, sent, received, staging, staged: 0 })
        };
        let lines = peers.into_iter().map(line).collect::<io::Result<_>>()?;
        Process::enter();
        Ok(Messages { mpi, tag, lines, quiet: None })
    }
}

impl<H: Handle> Line<H> {
    /// Whether a message has ended.
    fn progress(&mut self, mpi: &Mpi<H>, tag: c_int, peer: &mut Peer) -> io::Result<bool> {
        self.begin_receiving(mpi, tag, &peer.receiving)?;
        self.begin_sending(mpi, tag, &peer.sending)?;
        let mut has_ended = false;
        while let Some(request) = self.sent.front_mut()
            && mpi.test(request)?
        {
            self.sent.pop_front();
            end_first(&mut peer.sending);
            has_ended = true;
        }
        while let Some(Receipt { request, at }) = self.received.front_mut()
            && mpi.test(request)?
        {
            if let (Some(at), Some(Bytes { start, len, .. })) = (*at, peer.receiving.get(0)) {
                // SAFETY: the message has arrived here, and the operation's memory for it is valid and used by no other code.
                unsafe { std::ptr::copy_nonoverlapping(self.staging.as_ptr().wrapping_add(at), start, len) };
            }
            self.received.pop_front();
            end_first(&mut peer.receiving);
            has_ended = true;
        }
        Ok(has_ended)
    }

    fn begin_sending(&mut self, mpi: &Mpi<H>, tag: c_int, queue: &Queue) -> io::Result<()> {
        while self.sent.len() < AT_ONCE
            && let Some(Bytes { start, len, .. }) = queue.get(self.sent.len())
        {
            // SAFETY: guaranteed by the caller of `Queue::begin`. After a failure no call is made any more, and other
            // processes that still read the bytes do not change them.
            self.sent.push_back(unsafe { mpi.send(start, len, self.peer, tag) }?);
        }
        Ok(())
    }

    fn begin_receiving(&mut self, mpi: &Mpi<H>, tag: c_int, queue: &Queue) -> io::Result<()> {
        while self.received.len() < AT_ONCE
            && let Some(Bytes { start, len, is_own }) = queue.get(self.received.len())
        {
            if self.received.is_empty() {
                self.staged = 0;
            }
            let (to, at) = match is_own {
                true => (start, None),
                false if self.staged + len <= STAGED => {
                    (self.staging.as_ptr().wrapping_add(self.staged), Some(self.staged))
                }
                false if self.received.is_empty() => return Err(io::Error::other("a message is longer than a round")),
                // There is room once earlier ones have ended.
                false => return Ok(()),
            };
            // SAFETY: the transport's memory, which outlives the request (`Links::keeps_memory`), or the staging, of which
            // no other message has this part, and which also does.
            let request = unsafe { mpi.receive(to, len, self.peer, tag) }?;
            self.staged += at.map_or(0, |_| len.next_multiple_of(64));
            self.received.push_back(Receipt { request, at });
        }
        Ok(())
    }

    fn is_quiet(&self) -> bool {
        self.sent.is_empty() && self.received.is_empty()
    }
}

/// The first message is complete.
fn end_first(queue: &mut Queue) {
    queue.advance(queue.get(0).map_or(0, |bytes| bytes.len));
}

impl<H> Drop for Line<H> {
    fn drop(&mut self) {
        if self.received.is_empty() {
            // SAFETY: this is its last use.
            unsafe { ManuallyDrop::drop(&mut self.staging) };
        }
    }
}

impl<H: Handle> Links for Messages<H> {
    fn progress(&mut self, peers: &mut [Peer]) -> Result<(), (usize, io::Error)> {
        for (line, peer) in self.lines.iter_mut().zip(peers) {
            if line.progress(&self.mpi, self.tag, peer).map_err(|error| (peer.rank, error))? {
                self.quiet = None;
            }
        }
        Ok(())
    }

    fn sleep(&mut self, _: &[Peer], limit: Duration) -> bool {
        if self.lines.iter().all(Line::is_quiet) {
            return false;
        }
        match self.quiet.get_or_insert_with(Instant::now).elapsed() < EAGER {
            // A computing thread may need the core.
            true => std::thread::yield_now(),
            false => std::thread::sleep(NAP.min(limit)),
        }
        true
    }

    fn close(&mut self, _: &mut [Peer], with_word: bool, failure: &Failure, patience: Duration) {
        let parting = with_word.then(|| Goodbyes::say(self.mpi.clone(), self.tag, &self.lines));
        Process::leave(
            parting.and_then(Result::ok).map(|parting| Box::new(parting) as Box<dyn Parting>),
            failure,
            patience,
        );
    }

    fn keeps_memory(&self) -> bool {
        !self.lines.iter().all(Line::is_quiet)
    }
}

/// The last messages of a transport: its word to every peer that it leaves, and theirs. MPI must not end before.
struct Goodbyes<H: Handle> {
    mpi: Arc<Mpi<H>>,
    requests: Vec<H>,
    /// This rank's word, and room for one from each peer.
    _words: Vec<[u8; HEADER_BYTES]>,
}

impl<H: Handle> Goodbyes<H> {
    fn say(mpi: Arc<Mpi<H>>, tag: c_int, lines: &[Line<H>]) -> io::Result<ManuallyDrop<Self>> {
        let words = vec![Header::LEAVING.to_bytes(); 1 + lines.len()];
        // What MPI has of it is kept, unless all has ended.
        let mut goodbyes =
            ManuallyDrop::new(Goodbyes { mpi, requests: Vec::with_capacity(2 * lines.len()), _words: words });
        let Goodbyes { mpi, requests, _words: words } = &mut *goodbyes;
        let words = words.as_mut_ptr();
        for (at, line) in lines.iter().enumerate() {
            let theirs = words.wrapping_add(at + 1);
            // SAFETY: the words are kept until all requests have ended, or for ever. Nobody changes the own one.
            unsafe {
                requests.push(mpi.send(words.cast(), HEADER_BYTES, line.peer, tag)?);
                requests.push(mpi.receive(theirs.cast(), HEADER_BYTES, line.peer, tag)?);
            }
        }
        Ok(goodbyes)
    }
}

impl<H: Handle> Parting for ManuallyDrop<Goodbyes<H>> {
    fn is_over(&mut self) -> io::Result<bool> {
        let Goodbyes { mpi, requests, .. } = &mut **self;
        while let Some(request) = requests.last_mut() {
            if !mpi.test(request)? {
                return Ok(false);
            }
            requests.pop();
        }
        Ok(true)
    }
}
