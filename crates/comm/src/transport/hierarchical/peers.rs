//! A rank's connections to ranks of other nodes. All progress together, in the order in which they become ready, so that
//! no payload can make two ranks block each other.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::WINDOWS;
use crate::net::link::Link;
use crate::operation::{HEADER_BYTES, Header};
use crate::transport::frames::{Bytes, Receiving, Sending};

/// All connections of one rank.
pub(super) struct Peers {
    /// In rank order.
    pub all: Vec<Peer>,
    /// Reused, so that an operation allocates nothing.
    waiting: Vec<PollFd<'static>>,
}

/// The connection to one other rank.
pub(super) struct Peer {
    pub rank: usize,
    stream: TcpStream,
    pub sending: Sending,
    pub receiving: Receiving,
    /// The number of the message with the header of the current operation.
    pub header_at: u64,
    /// Whether that header has come.
    pub has_come: bool,
    /// The number of the last message sent, and expected, in each of the latest rounds.
    pub sent_at: [u64; WINDOWS],
    pub come_at: [u64; WINDOWS],
    /// The same for the sums that come back.
    pub returned_at: [u64; WINDOWS],
    /// Where the partial sums expected in a round begin in the memory for them, in elements.
    pub taken: [usize; WINDOWS],
}

impl Peers {
    /// `links` are connections to these ranks. Each has room for `room` messages in either direction.
    pub(super) fn new(links: Vec<(usize, Link)>, room: usize) -> io::Result<Self> {
        let peer = |(rank, link): (usize, Link)| {
            let (stream, outbound, inbound) = link.into_parts()?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let (sending, receiving) = (Sending::new(outbound, room), Receiving::new(inbound, room));
            Ok(Peer {
                rank,
                stream,
                sending,
                receiving,
                header_at: 0,
                has_come: false,
                sent_at: [0; WINDOWS],
                come_at: [0; WINDOWS],
                returned_at: [0; WINDOWS],
                taken: [0; WINDOWS],
            })
        };
        let mut all = links.into_iter().map(peer).collect::<io::Result<Vec<_>>>()?;
        all.sort_by_key(|peer| peer.rank);
        Ok(Peers { waiting: Vec::with_capacity(all.len()), all })
    }

    /// Lets every connection send a frame and receive as much as possible, without blocking. An error names the rank whose
    /// connection broke.
    pub(super) fn progress(&mut self) -> Result<(), (usize, io::Error)> {
        self.all.iter_mut().try_for_each(|peer| peer.progress().map_err(|error| (peer.rank, error)))
    }

    /// Sleeps until a connection can go on, for at most `limit`. False at once if none has anything to do.
    pub(super) fn sleep(&mut self, limit: Duration) -> bool {
        self.waiting.clear();
        for peer in &self.all {
            let mut events = PollFlags::empty();
            events.set(PollFlags::OUT, !peer.sending.is_complete());
            events.set(PollFlags::IN, !peer.receiving.is_complete());
            if !events.is_empty() {
                // SAFETY: the stream stays open for as long as this list is used, which is this call.
                let descriptor = unsafe { BorrowedFd::borrow_raw(peer.stream.as_raw_fd()) };
                self.waiting.push(PollFd::from_borrowed_fd(descriptor, events));
            }
        }
        let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
        // An error here, such as an interruption, only means to check again.
        let _ = (!self.waiting.is_empty()).then(|| poll(&mut self.waiting, Some(&limit)));
        !self.waiting.is_empty()
    }

    /// The first rank that has not taken everything sent to it.
    pub(super) fn unsent(&self) -> Option<usize> {
        self.all.iter().find(|peer| !peer.sending.is_complete()).map(|peer| peer.rank)
    }

    /// The first rank that has not taken everything sent to it in the round of this window.
    pub(super) fn unsent_in(&self, window: usize) -> Option<usize> {
        self.all.iter().find(|peer| peer.sending.complete() < peer.sent_at[window]).map(|peer| peer.rank)
    }

    /// The first rank that has not sent everything that is expected of it up to the round of this window.
    pub(super) fn missing_in(&self, window: usize) -> Option<usize> {
        self.all.iter().find(|peer| peer.receiving.complete() < peer.come_at[window]).map(|peer| peer.rank)
    }

    /// The same for the sums that come back.
    pub(super) fn unreturned_in(&self, window: usize) -> Option<usize> {
        self.all.iter().find(|peer| peer.receiving.complete() < peer.returned_at[window]).map(|peer| peer.rank)
    }

    /// Ends all connections. `with_word` says that this rank leaves; in the middle of an operation, the others would take
    /// the word for data.
    pub(super) fn close(&mut self, with_word: bool) {
        let header = Header::LEAVING.to_bytes();
        for peer in &mut self.all {
            // A peer that misses this message sees the end of the connection.
            if with_word {
                // SAFETY: no progress is asked for after this.
                unsafe { peer.sending.begin(Bytes::of(header.as_ptr(), 0..HEADER_BYTES)) };
                let _ = peer.sending.progress(&peer.stream);
            }
            let _ = peer.stream.shutdown(std::net::Shutdown::Write);
        }
    }
}

impl Peer {
    /// Sends a frame and receives as much as possible, both without blocking.
    fn progress(&mut self) -> io::Result<()> {
        match self.sending.progress(&self.stream) {
            // Data that the other side sent before it closed must still be read.
            Err(error) if self.receiving.is_complete() => return Err(error),
            Ok(()) | Err(_) => {}
        }
        self.receiving.progress(&self.stream)
    }
}
