//! The messages between ranks, by MPI, in the order in which they began. A long one is sent and received as one. Short ones
//! that wait together travel as one, a *pack*: the header of a short sum takes its values along.
//!
//! The receiver does not know how many messages are in a pack, so it expects nothing else until a pack has come.
//!
//! MPI may write to memory that it was given to receive into until the message is complete, even if the operation has
//! failed and its caller has the memory back. So MPI receives into memory that is kept for ever if need be: the
//! transport's own, or what is registered with it. What belongs elsewhere is copied from there. What is sent is only read.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::{Add, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Mpi;
use super::process::{Parting, Process};
use super::sys::Handle;
use crate::failure::Failure;
use crate::memory::Mapping;
use crate::operation::{HEADER_BYTES, Header};
use crate::traffic::Traffic;
use crate::transport::DIRECT_BYTES;
use crate::transport::hierarchical::{Links, Peer, SegmentSizes};
use crate::transport::queue::{Bytes, Queue};

/// Messages of a direction that MPI knows of at a time; later ones wait in their queue.
const AT_ONCE: usize = 16;
/// Bytes of a chunk: long messages, because each costs several exchanges between the ranks.
const ROUND: usize = 4 << 20;
/// Room for what a peer sends to an operation's memory that is not registered: the largest message.
const STAGED: usize = ROUND;
/// Bytes that come to a node directly: long enough that the saved exchange counts, short enough to be added up twice.
const DIRECT: usize = 256 << 10;
/// Bytes of a pack: at least an operation's header and all values of a short sum.
const PACK: usize = HEADER_BYTES + DIRECT_BYTES;
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
    sent: VecDeque<Sent<H>>,
    received: VecDeque<Receipt<H>>,
    /// Where messages for an operation's memory arrive, then a pack, then the packs that are sent. It may have to outlive the
    /// line.
    staging: ManuallyDrop<Mapping>,
    /// Where the next message for an operation's memory begins.
    staged: usize,
    /// What is left of the pack that has come.
    unpacked: Range<usize>,
    /// Packs sent so far.
    packs: usize,
    /// Bytes handed to MPI, and taken from it, so far.
    traffic: Traffic,
}

struct Sent<H> {
    request: H,
    /// How many messages it is.
    messages: usize,
}

struct Receipt<H> {
    request: H,
    to: Destination,
}

/// Where MPI receives to.
enum Destination {
    /// The message's own place.
    Itself,
    /// A place in the staging.
    Staging(usize),
    /// The place of a pack.
    Pack,
}

impl<H: Handle> Messages<H> {
    /// Messages to and from the processes with these numbers.
    pub fn new(mpi: Arc<Mpi<H>>, peers: Vec<usize>, tag: c_int) -> io::Result<Self> {
        let line = |peer: usize| {
            let peer = c_int::try_from(peer).map_err(io::Error::other)?;
            // Pages that no message touches use no memory.
            let staging = ManuallyDrop::new(Mapping::private(STAGED + (1 + AT_ONCE) * PACK)?);
            let sent = VecDeque::with_capacity(AT_ONCE);
            let received = VecDeque::with_capacity(AT_ONCE);
            Ok(Line { peer, sent, received, staging, staged: 0, unpacked: 0..0, packs: 0, traffic: Traffic::default() })
        };
        let lines = peers.into_iter().map(line).collect::<io::Result<_>>()?;
        Process::enter();
        Ok(Messages { mpi, tag, lines, quiet: None })
    }
}

impl<H: Handle> Line<H> {
    /// Whether a message has ended.
    fn progress(&mut self, mpi: &Mpi<H>, tag: c_int, peer: &mut Peer) -> io::Result<bool> {
        let mut has_ended = self.unpack(&mut peer.receiving)?;
        self.begin_receiving(mpi, tag, &peer.receiving)?;
        self.begin_sending(mpi, tag, &peer.sending)?;
        while let Some(Sent { request, messages }) = self.sent.front_mut()
            && mpi.test(request)?.is_some()
        {
            (0..*messages).for_each(|_| end_first(&mut peer.sending));
            self.sent.pop_front();
            has_ended = true;
        }
        while let Some(Receipt { request, to }) = self.received.front_mut()
            && let Some(status) = mpi.test(request)?
        {
            let come = match *to {
                Destination::Itself | Destination::Staging(_) => peer.receiving.get(0).map_or(0, |bytes| bytes.len),
                Destination::Pack => mpi.received(&status)?,
            };
            self.traffic.received += come as u64;
            match *to {
                Destination::Itself => end_first(&mut peer.receiving),
                Destination::Staging(at) => take(&self.staging, at, &mut peer.receiving),
                Destination::Pack => {
                    self.unpacked = STAGED..STAGED + come;
                    self.unpack(&mut peer.receiving)?;
                }
            }
            self.received.pop_front();
            has_ended = true;
        }
        Ok(has_ended)
    }

    fn begin_sending(&mut self, mpi: &Mpi<H>, tag: c_int, queue: &Queue) -> io::Result<()> {
        let mut begun = self.sent.iter().map(|sent| sent.messages).sum();
        while self.sent.len() < AT_ONCE
            && let Some(Bytes { start, len, .. }) = queue.get(begun)
        {
            let messages = together(queue, begun);
            let (from, len) =
                if messages > 1 { self.pack(queue, begun..begun + messages) } else { (start.cast_const(), len) };
            // SAFETY: guaranteed by the caller of `Queue::begin`, or a pack, whose place is used again once this one has been
            // sent. After a failure no call is made any more, and other processes that still read the bytes do not change them.
            let request = unsafe { mpi.send(from, len, self.peer, tag) }?;
            self.traffic.sent += len as u64;
            self.sent.push_back(Sent { request, messages });
            begun += messages;
        }
        Ok(())
    }

    /// Copies messages to the place of the next pack.
    fn pack(&mut self, queue: &Queue, messages: Range<usize>) -> (*const u8, usize) {
        let pack = self.staging.as_ptr().wrapping_add(STAGED + (1 + self.packs % AT_ONCE) * PACK);
        self.packs += 1;
        let mut end = 0;
        for Bytes { start, len, .. } in messages.filter_map(|message| queue.get(message)) {
            // SAFETY: the message is valid, guaranteed by the caller of `Queue::begin`, and there is room for all of them.
            // Fewer than `AT_ONCE` packs are being sent, so none of them is here.
            unsafe { std::ptr::copy_nonoverlapping(start.cast_const(), pack.wrapping_add(end), len) };
            end += len;
        }
        (pack.cast_const(), end)
    }

    /// Takes expected messages out of the pack that has come. Whether there was one.
    fn unpack(&mut self, queue: &mut Queue) -> io::Result<bool> {
        let before = self.unpacked.start;
        while let Some(Bytes { len, .. }) = queue.get(0).filter(|_| !self.unpacked.is_empty()) {
            if len > self.unpacked.len() {
                return Err(io::Error::other("a message is shorter than expected"));
            }
            take(&self.staging, self.unpacked.start, queue);
            self.unpacked.start += len;
        }
        Ok(self.unpacked.start > before)
    }

    fn begin_receiving(&mut self, mpi: &Mpi<H>, tag: c_int, queue: &Queue) -> io::Result<()> {
        while self.received.len() < AT_ONCE
            && !matches!(self.received.back(), Some(Receipt { to: Destination::Pack, .. }))
            && let Some(Bytes { start, len, is_lasting }) = queue.get(self.received.len())
        {
            if self.received.is_empty() {
                self.staged = 0;
            }
            let (room, to) = match is_lasting {
                _ if len <= PACK => (PACK, Destination::Pack),
                true => (len, Destination::Itself),
                false if self.staged + len <= STAGED => (len, Destination::Staging(self.staged)),
                false if self.received.is_empty() => return Err(io::Error::other("a message is longer than a chunk")),
                // There is room once earlier ones have ended.
                false => return Ok(()),
            };
            let place = match to {
                Destination::Itself => start,
                Destination::Staging(at) => {
                    self.staged += len.next_multiple_of(64);
                    self.staging.as_ptr().wrapping_add(at)
                }
                Destination::Pack => self.staging.as_ptr().wrapping_add(STAGED),
            };
            // SAFETY: the transport's memory, which outlives the request (`Links::keeps_memory`), or the staging, which also
            // does, and of which no other message has this part: what is left of a pack would have been taken for this one.
            let request = unsafe { mpi.receive(place, room, self.peer, tag) }?;
            self.received.push_back(Receipt { request, to });
        }
        Ok(())
    }

    fn is_quiet(&self) -> bool {
        self.sent.is_empty() && self.received.is_empty()
    }
}

/// How many messages from this one on travel as one.
fn together(queue: &Queue, first: usize) -> usize {
    let mut bytes = 0;
    let lengths = (first..).map_while(|place| queue.get(place)).map(|message| message.len);
    let fits = lengths.take_while(|len| {
        bytes += len;
        bytes <= PACK
    });
    fits.count().max(1)
}

/// Copies the first message that is expected from a place in the staging; it is complete then.
fn take(staging: &Mapping, at: usize, queue: &mut Queue) {
    if let Some(Bytes { start, len, .. }) = queue.get(0) {
        // SAFETY: the message has arrived there, and the memory for it is valid and used by no other code.
        unsafe { std::ptr::copy_nonoverlapping(staging.as_ptr().wrapping_add(at).cast_const(), start, len) };
        end_first(queue);
    }
}

/// The first message is complete.
fn end_first(queue: &mut Queue) {
    queue.advance(queue.get(0).map_or(0, |bytes| bytes.len));
}

impl<H> Drop for Line<H> {
    fn drop(&mut self) {
        if self.sent.is_empty() && self.received.is_empty() {
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

    fn close(&mut self, _: &mut [Peer], with_word: bool, failure: &Failure, timeout: Duration) {
        let parting = with_word.then(|| Goodbyes::say(self.mpi.clone(), self.tag, &self.lines));
        Process::leave(
            parting.and_then(Result::ok).map(|parting| Box::new(parting) as Box<dyn Parting>),
            failure,
            timeout,
        );
    }

    fn keeps_memory(&self) -> bool {
        !self.lines.iter().all(Line::is_quiet)
    }

    fn traffic(&self) -> Traffic {
        self.lines.iter().map(|line| line.traffic).fold(Traffic::default(), Traffic::add)
    }

    fn segments(&self) -> SegmentSizes {
        SegmentSizes { direct: DIRECT, chunk: ROUND }
    }

    /// Long messages come to the staging of one line at a time: those of the rank that sends its copy to all.
    fn buffer_bytes(&self) -> usize {
        STAGED + self.lines.len() * (1 + AT_ONCE) * PACK
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
        let own = words.as_mut_ptr();
        for (at, line) in lines.iter().enumerate() {
            let theirs = own.wrapping_add(at + 1);
            // SAFETY: the words are kept until all requests have ended, or for ever. Nobody changes the own one.
            unsafe {
                requests.push(mpi.send(own.cast(), HEADER_BYTES, line.peer, tag)?);
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
            if mpi.test(request)?.is_none() {
                return Ok(false);
            }
            requests.pop();
        }
        Ok(true)
    }
}
