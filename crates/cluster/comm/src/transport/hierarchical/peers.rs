//! The ranks of other nodes with which a rank exchanges messages, and what is under way between them.
//!
//! All peers progress together, in the order in which they become ready, so that no payload can make two ranks block each
//! other. What carries the messages is behind [`Links`].

use std::io;
use std::time::Duration;

use super::WINDOWS;
use crate::failure::Failure;
use crate::traffic::Traffic;
use crate::transport::queue::Queue;

/// Carries the messages between a rank and its peers.
pub(crate) trait Links: Send {
    /// Lets the messages to and from every peer go on, without blocking. An error names the rank whose messages broke.
    fn progress(&mut self, peers: &mut [Peer]) -> Result<(), (usize, io::Error)>;

    /// Sleeps until a message can go on, for at most `limit`. False at once if there is none.
    fn sleep(&mut self, peers: &[Peer], limit: Duration) -> bool;

    /// Ends all links. `with_word` says that this rank leaves; in the middle of an operation, the others would take the word
    /// for data. The rest is as for [`crate::transport::Transport::close`].
    fn close(&mut self, peers: &mut [Peer], with_word: bool, failure: &Failure, timeout: Duration);

    /// Whether messages may still be written to the transport's own memory and to what is registered with it, which then must stay
    /// valid for ever.
    fn keeps_memory(&self) -> bool;

    /// What this rank has sent to its peers and received from them so far.
    fn traffic(&self) -> Traffic;

    /// How much to send at a time.
    fn segments(&self) -> SegmentSizes;

    /// Bytes of the memory through which messages pass.
    fn buffer_bytes(&self) -> usize;
}

/// How an operation is divided into messages. All ranks have links of one kind, so they divide alike.
#[derive(Clone, Copy)]
pub(crate) struct SegmentSizes {
    /// Up to this many bytes come to a node directly, from all others together, even if a sum is longer than
    /// [`DIRECT_BYTES`](crate::transport::DIRECT_BYTES).
    pub direct: usize,
    /// Bytes of a chunk, where every rank is a node of its own. Otherwise a chunk fills a slot.
    pub chunk: usize,
}

/// All peers of one rank.
pub(super) struct Peers {
    /// In rank order.
    pub all: Vec<Peer>,
    pub links: Box<dyn Links>,
}

/// One other rank.
pub(crate) struct Peer {
    pub rank: usize,
    pub sending: Queue,
    pub receiving: Queue,
    /// The number of the message with the header of the current operation.
    pub(super) header_at: u64,
    /// Whether that header has come.
    pub(super) has_come: bool,
    /// The number of the last message sent, and expected, in each of the latest chunks.
    pub(super) sent_at: [u64; WINDOWS],
    pub(super) come_at: [u64; WINDOWS],
    /// The same for the sums that come back.
    pub(super) returned_at: [u64; WINDOWS],
    /// Where the partial sums expected in a chunk begin in the memory for them, in elements.
    pub(super) taken: [usize; WINDOWS],
}

impl Peers {
    /// `links` lead to these ranks, in this order. There is room for `room` messages in either direction of each.
    pub(super) fn new(ranks: impl Iterator<Item = usize>, links: Box<dyn Links>, room: usize) -> Self {
        let peer = |rank| Peer {
            rank,
            sending: Queue::new(room),
            receiving: Queue::new(room),
            header_at: 0,
            has_come: false,
            sent_at: [0; WINDOWS],
            come_at: [0; WINDOWS],
            returned_at: [0; WINDOWS],
            taken: [0; WINDOWS],
        };
        Peers { all: ranks.map(peer).collect(), links }
    }

    /// See [`Links::progress`].
    pub(super) fn progress(&mut self) -> Result<(), (usize, io::Error)> {
        self.links.progress(&mut self.all)
    }

    /// See [`Links::sleep`].
    pub(super) fn sleep(&mut self, limit: Duration) -> bool {
        self.links.sleep(&self.all, limit)
    }

    /// The first rank that has not taken everything sent to it.
    pub(super) fn unsent(&self) -> Option<usize> {
        self.all.iter().find(|peer| !peer.sending.is_complete()).map(|peer| peer.rank)
    }

    /// The first rank that has not taken everything sent to it in the chunk of this window.
    pub(super) fn unsent_in(&self, window: usize) -> Option<usize> {
        self.all.iter().find(|peer| peer.sending.complete() < peer.sent_at[window]).map(|peer| peer.rank)
    }

    /// The first rank that has not sent everything that is expected of it up to the chunk of this window.
    pub(super) fn missing_in(&self, window: usize) -> Option<usize> {
        self.all.iter().find(|peer| peer.receiving.complete() < peer.come_at[window]).map(|peer| peer.rank)
    }

    /// The same for the sums that come back.
    pub(super) fn unreturned_in(&self, window: usize) -> Option<usize> {
        self.all.iter().find(|peer| peer.receiving.complete() < peer.returned_at[window]).map(|peer| peer.rank)
    }
}
