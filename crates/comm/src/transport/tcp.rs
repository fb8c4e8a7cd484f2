//! The plain transport: one TCP connection between every two ranks.
//!
//! It divides and adds data as shared memory does, in rounds: every rank sends every owner its piece, and the owners
//! add up and send the result to all. All connections progress together, in the order in which they become ready, so
//! that no payload can make two ranks block each other. The memory is that of one round, whatever the size of the data.

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use enmasse_tensor::AlignedBuffer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::frames::{Bytes, Receiving, Sending};
use super::region::Region;
use super::{Members, Stop, Transport, Turn};
use crate::cause::CauseKind;
use crate::element::{Element, with_element};
use crate::net::link::Link;
use crate::net::mac::Altered;
use crate::operation::{HEADER_BYTES, Header, Kind, Operation};
use crate::pieces::{chunk, part_of, piece};
use crate::shards::PARTIALS_LIMIT;
use crate::tree::tree_reduce;

/// Bytes that one round of an operation moves.
const ROUND_BYTES: usize = 4 << 20;
/// How long a rank sleeps before it checks whether the group has failed.
const SLEEP: Duration = Duration::from_millis(20);
/// How long a rank whose peer's connection broke waits for the better-informed cause from the control connection.
const GRACE: Duration = Duration::from_millis(500);

/// One rank's connections.
pub(crate) struct TcpTransport {
    members: Members,
    peers: Vec<Peer>,
    /// Room for one piece of every partial sum of each rank.
    scratch: AlignedBuffer,
    /// One header from each rank.
    headers: Vec<[u8; HEADER_BYTES]>,
    /// Reused, so that an operation allocates nothing.
    waiting: Vec<PollFd<'static>>,
    /// Whether every operation so far is complete, so that the next bytes on all connections belong to a header.
    is_between: bool,
}

/// The connection to one other rank, and the work left on it in this exchange.
struct Peer {
    rank: usize,
    stream: TcpStream,
    sending: Sending,
    receiving: Receiving,
}

impl TcpTransport {
    /// `links` are connections to all other ranks, each with its number.
    pub(crate) fn new(members: Members, links: Vec<(usize, Link)>) -> io::Result<Self> {
        let peers = links
            .into_iter()
            .map(|(rank, link)| {
                let (stream, outbound, inbound) = link.into_parts()?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                Ok(Peer { rank, stream, sending: Sending::new(outbound), receiving: Receiving::new(inbound) })
            })
            .collect::<io::Result<Vec<_>>>()?;
        let ranks = members.world_size();
        Ok(TcpTransport {
            // A piece is cut at cache lines, so all pieces together may exceed a round by a line each. Pages that no
            // operation touches use no memory.
            scratch: AlignedBuffer::zeroed(ROUND_BYTES + ranks * PARTIALS_LIMIT * 64)?,
            headers: vec![[0; HEADER_BYTES]; ranks],
            waiting: Vec::with_capacity(peers.len()),
            peers,
            members,
            is_between: true,
        })
    }

    /// Sends and receives the bytes of `plan` for each other rank, all at once.
    fn exchange(&mut self, turn: &Turn, plan: impl Fn(usize) -> (Bytes, Bytes)) -> Result<(), Stop> {
        for peer in &mut self.peers {
            let (given, taken) = plan(peer.rank);
            // SAFETY: memory of the operation or the transport, valid and used by no other code until the operation is
            // done; any bytes are a valid value. A failed exchange is the transport's last.
            unsafe {
                peer.sending.begin(given);
                peer.receiving.begin(taken);
            }
        }
        loop {
            self.waiting.clear();
            for peer in &mut self.peers {
                if let Err(error) = peer.progress() {
                    return Err(lost(&self.members, turn, peer.rank, &error));
                }
                let mut events = PollFlags::empty();
                events.set(PollFlags::OUT, !peer.sending.is_complete());
                events.set(PollFlags::IN, !peer.receiving.is_complete());
                if !events.is_empty() {
                    // SAFETY: the stream stays open for the lifetime of this list, which is this call.
                    let descriptor = unsafe { BorrowedFd::borrow_raw(peer.stream.as_raw_fd()) };
                    self.waiting.push(PollFd::from_borrowed_fd(descriptor, events));
                }
            }
            if self.waiting.is_empty() {
                return Ok(());
            }
            turn.go_on_waiting(&self.members, || self.late())?;
            let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(SLEEP.subsec_nanos()) };
            // An error here, such as an interruption, only means to check again.
            let _ = poll(&mut self.waiting, Some(&limit));
        }
    }

    /// The ranks that still have to send in this exchange; if there are none, those that still have to receive.
    fn late(&self) -> Vec<usize> {
        let of =
            |is_late: fn(&Peer) -> bool| self.peers.iter().filter(|peer| is_late(peer)).map(|peer| peer.rank).collect();
        let late: Vec<_> = of(|peer| !peer.receiving.is_complete());
        if late.is_empty() { of(|peer| !peer.sending.is_complete()) } else { late }
    }

    /// Exchanges and compares headers.
    fn agree(&mut self, turn: &Turn) -> Result<(), Stop> {
        let own = turn.operation.header(self.members.identity).to_bytes();
        let headers = self.headers.as_mut_ptr();
        self.exchange(turn, |rank| {
            (Bytes::of(own.as_ptr(), 0..HEADER_BYTES), Bytes::of(headers.wrapping_add(rank), 0..1))
        })?;
        self.headers[self.members.rank] = own;
        if let Some(rank) = self.headers.iter().position(|header| header == &Header::LEAVING.to_bytes()) {
            return Err(self.members.left(rank, turn.operation));
        }
        self.members.compare(turn, |rank| Header::from_bytes(&self.headers[rank]))
    }

    fn carry_out(&mut self, turn: &Turn) -> Result<(), Stop> {
        let operation = turn.operation;
        self.agree(turn)?;
        let (rank, ranks) = (self.members.rank, self.members.world_size());
        match operation.kind {
            Kind::Barrier => Ok(()),
            Kind::AllReduce => with_element!(operation.dtype, T => self.all_reduce::<T>(turn)),
            Kind::ReduceScatter => with_element!(operation.dtype, T => self.reduce_scatter::<T>(turn)),
            Kind::AllGather | Kind::AllGatherPieces => {
                operation.place_own_part(rank, ranks);
                let part = |sender: usize| Bytes::of(operation.output, operation.part_from(sender, ranks));
                self.exchange(turn, |other| (part(rank), part(other)))
            }
            Kind::Broadcast => self.exchange(turn, |other| {
                let data = Bytes::of(operation.output, operation.part_from(operation.root, ranks));
                match operation.root {
                    root if root == rank => (data, Bytes::NONE),
                    root if root == other => (Bytes::NONE, data),
                    _ => (Bytes::NONE, Bytes::NONE),
                }
            }),
        }
    }

    fn all_reduce<T: Element>(&mut self, turn: &Turn) -> Result<(), Stop> {
        let (count, rank, ranks) = (turn.operation.count, self.members.rank, self.members.world_size());
        let data = turn.operation.output.cast::<T>();
        let chunk = chunk(ROUND_BYTES, size_of::<T>(), turn.operation.shards.most_partials());
        for start in (0..count).step_by(chunk) {
            let round = |owner: usize| {
                let piece = piece(chunk.min(count - start), size_of::<T>(), owner, ranks);
                start + piece.start..start + piece.end
            };
            self.reduce::<T>(turn, round)?;
            self.exchange(turn, |other| (Bytes::of(data, round(rank)), Bytes::of(data, round(other))))?;
        }
        Ok(())
    }

    fn reduce_scatter<T: Element>(&mut self, turn: &Turn) -> Result<(), Stop> {
        let (count, ranks) = (turn.operation.count, self.members.world_size());
        let pieces = |owner: usize| piece(count, size_of::<T>(), owner, ranks);
        // Each round takes a part of every rank's piece. Rank 0's piece is the largest.
        let chunk = chunk(ROUND_BYTES, size_of::<T>(), turn.operation.shards.most_partials()).div_ceil(ranks);
        for start in (0..pieces(0).len()).step_by(chunk) {
            self.reduce::<T>(turn, |owner| part_of(&pieces(owner), start, chunk))?;
        }
        Ok(())
    }

    /// Adds up one round: every rank sends each owner its part of the round, and adds up the part that it owns itself.
    fn reduce<T: Element>(&mut self, turn: &Turn, owned: impl Fn(usize) -> Range<usize>) -> Result<(), Stop> {
        let Operation { shards, stride, reduction, .. } = *turn.operation;
        let (data, rank) = (turn.operation.output.cast::<T>(), self.members.rank);
        let (own, most) = (owned(rank), shards.most_partials());
        let scratch = self.scratch.as_ptr().cast::<T>();
        let place = |other: usize, partial: usize| scratch.wrapping_add((other * most + partial) * own.len());
        for partial in 0..most {
            let has = |rank: usize| partial < shards.partials(rank).count();
            self.exchange(turn, |other| {
                let given = Bytes::of(data.wrapping_add(partial * stride), owned(other));
                let taken = Bytes::of(place(other, partial), 0..own.len());
                (if has(rank) { given } else { Bytes::NONE }, if has(other) { taken } else { Bytes::NONE })
            })?;
        }
        let source = |other: usize, partial: usize, range: Range<usize>| {
            let from = match other == rank {
                true => data.wrapping_add(partial * stride + own.start),
                false => place(other, partial),
            };
            // SAFETY: inside the caller's data or the scratch memory, which only this thread uses; the sink below
            // writes once a block is complete.
            unsafe { std::slice::from_raw_parts(from.wrapping_add(range.start), range.len()) }
        };
        tree_reduce(&shards, own.len(), reduction, source, |at, values: &[T]| {
            let to = data.wrapping_add(own.start + at);
            // SAFETY: inside the caller's data, which is not borrowed here.
            unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len()) }
        });
        Ok(())
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

/// The cause if a peer's connection broke. The ranks' supervisor knows the reason better, and reports it within
/// moments.
fn lost(members: &Members, turn: &Turn, rank: usize, error: &io::Error) -> Stop {
    if let Some(cause) = Altered::cause(error) {
        return Stop::Raise(Box::new(cause.during(turn.operation.describe(), turn.operation.sequence)));
    }
    if turn.failure.fails_within(GRACE) {
        return Stop::Failed;
    }
    let how = match error.kind() {
        ErrorKind::UnexpectedEof => "closed".to_owned(),
        _ => format!("broke ({error})"),
    };
    let message = format!("its connection to rank {} {how}: see its own messages", members.job_ranks[members.rank]);
    members.blame(rank, CauseKind::Exited, turn.operation, message)
}

impl Transport for TcpTransport {
    fn execute(&mut self, turn: &Turn) -> Result<(), Stop> {
        self.is_between = false;
        self.carry_out(turn)?;
        self.is_between = true;
        Ok(())
    }

    fn region(&self) -> Option<Arc<Region>> {
        None
    }

    fn close(&mut self) {
        let header = Header::LEAVING.to_bytes();
        for peer in &mut self.peers {
            // A peer that misses this message sees the end of the connection. In the middle of an operation, it would
            // take the message for data.
            if self.is_between {
                // SAFETY: no progress is asked for after this.
                unsafe { peer.sending.begin(Bytes::of(header.as_ptr(), 0..HEADER_BYTES)) };
                let _ = peer.sending.progress(&peer.stream);
            }
            let _ = peer.stream.shutdown(std::net::Shutdown::Write);
        }
    }
}
