//! Messages over TCP: one connection to each peer.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::ops::Add;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::SLOT_BYTES;
use super::peers::{Links, Peer, SegmentSizes};
use crate::failure::Failure;
use crate::net::link::Link;
use crate::operation::{HEADER_BYTES, Header};
use crate::traffic::Traffic;
use crate::transport::DIRECT_BYTES;
use crate::transport::frames::{FrameSize, Receiving, Sending};
use crate::transport::queue::Bytes;

/// The connections of one rank.
pub(crate) struct Sockets {
    /// In rank order.
    all: Vec<Socket>,
    /// Reused, so that an operation allocates nothing.
    waiting: Vec<PollFd<'static>>,
}

struct Socket {
    stream: TcpStream,
    sending: Sending,
    receiving: Receiving,
}

impl Sockets {
    /// `links` are connections to these ranks, in a group of this many nodes.
    pub(crate) fn new(mut links: Vec<(usize, Link)>, nodes: usize) -> io::Result<Self> {
        links.sort_by_key(|(rank, _)| *rank);
        let frames = FrameSize::new(nodes);
        let socket = |(_, link): (usize, Link)| {
            let (stream, outbound, inbound) = link.into_parts()?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let sending = Sending::new(outbound, frames);
            Ok(Socket { stream, sending, receiving: Receiving::new(inbound, frames) })
        };
        let all = links.into_iter().map(socket).collect::<io::Result<Vec<_>>>()?;
        Ok(Sockets { waiting: Vec::with_capacity(all.len()), all })
    }
}

impl Links for Sockets {
    /// Every connection sends a frame, and receives as much as possible.
    fn progress(&mut self, peers: &mut [Peer]) -> Result<(), (usize, io::Error)> {
        let mut pairs = self.all.iter_mut().zip(peers);
        pairs.try_for_each(|(socket, peer)| socket.progress(peer).map_err(|error| (peer.rank, error)))
    }

    fn sleep(&mut self, peers: &[Peer], limit: Duration) -> bool {
        self.waiting.clear();
        for (socket, peer) in self.all.iter().zip(peers) {
            let mut events = PollFlags::empty();
            events.set(PollFlags::OUT, !peer.sending.is_complete());
            events.set(PollFlags::IN, !peer.receiving.is_complete());
            if !events.is_empty() {
                // SAFETY: the stream stays open for as long as this list is used, which is this call.
                let descriptor = unsafe { BorrowedFd::borrow_raw(socket.stream.as_raw_fd()) };
                self.waiting.push(PollFd::from_borrowed_fd(descriptor, events));
            }
        }
        let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
        // An error here, such as an interruption, only means to check again.
        let _ = (!self.waiting.is_empty()).then(|| poll(&mut self.waiting, Some(&limit)));
        !self.waiting.is_empty()
    }

    fn close(&mut self, peers: &mut [Peer], with_word: bool, _: &Failure, _: Duration) {
        let header = Header::LEAVING.to_bytes();
        for (socket, peer) in self.all.iter_mut().zip(peers) {
            // A peer that misses this message sees the end of the connection.
            if with_word {
                // SAFETY: no progress is asked for after this.
                unsafe { peer.sending.begin(Bytes::of(header.as_ptr(), 0..HEADER_BYTES)) };
                let _ = socket.sending.progress(&mut peer.sending, &socket.stream);
            }
            let _ = socket.stream.shutdown(Shutdown::Write);
        }
    }

    /// Bytes arrive only in calls.
    fn keeps_memory(&self) -> bool {
        false
    }

    fn traffic(&self) -> Traffic {
        let of_one = |socket: &Socket| Traffic { sent: socket.sending.bytes(), received: socket.receiving.bytes() };
        self.all.iter().map(of_one).fold(Traffic::default(), Traffic::add)
    }

    fn segments(&self) -> SegmentSizes {
        SegmentSizes { direct: DIRECT_BYTES, chunk: SLOT_BYTES }
    }

    /// Bytes arrive in the memory of messages, and are sealed in memory for one record.
    fn buffer_bytes(&self) -> usize {
        self.all.iter().map(|socket| socket.sending.record_bytes()).sum()
    }
}

impl Socket {
    /// Sends a frame and receives as much as possible, both without blocking.
    fn progress(&mut self, peer: &mut Peer) -> io::Result<()> {
        match self.sending.progress(&mut peer.sending, &self.stream) {
            // Data that the other side sent before it closed must still be read.
            Err(error) if peer.receiving.is_complete() => return Err(error),
            Ok(()) | Err(_) => {}
        }
        self.receiving.progress(&mut peer.receiving, &self.stream)
    }
}
