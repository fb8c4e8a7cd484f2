//! The frames in which messages travel over TCP. Both ends know the length of a message, so only its bytes and tags travel:
//! the message is cut into frames of one size, and each is sealed as a record.
//!
//! Nothing here waits or allocates. What is sent is encrypted in a copy of one frame, since its memory is still in use. What
//! arrives lies in the operation's memory, where it is decrypted; a message is complete once all its frames are found right,
//! and the operation fails unless all of them are.

use std::io::{self, ErrorKind, IoSliceMut, Read, Write};

use super::queue::{Bytes, Queue};
use crate::net::record::{Inbound, Outbound, TAG_BYTES};

/// What a frame with its tag must fit into: a segment of TCP, of 64 KiB with its headers. A tag in a segment of its own would wake the
/// other side for 16 bytes.
const SEGMENT_BYTES: usize = 63 << 10;
/// Segments of a frame: enough to be sealed at full speed, and few enough to be in the core's cache still when they are sent or opened.
const MAX_SEGMENTS: usize = 4;
/// What the records of all connections of a rank may take together, as long as each has a segment.
const RECORDS_BYTES: usize = 8 << 20;

/// The length of every frame of a message but the last. All ranks of a group derive the same from its nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameSize {
    segments: usize,
}

impl FrameSize {
    /// In a group of this many nodes, to each of which a rank has a connection.
    pub(crate) fn new(nodes: usize) -> Self {
        FrameSize { segments: (RECORDS_BYTES / SEGMENT_BYTES / nodes).clamp(1, MAX_SEGMENTS) }
    }

    fn bytes(self) -> usize {
        self.segments * SEGMENT_BYTES
    }

    /// Bytes of the longest record: a frame and its tag.
    fn record_bytes(self) -> usize {
        self.bytes() + TAG_BYTES
    }

    /// The frame in progress: the first bytes of the first message that is not complete.
    fn first(self, queue: &Queue) -> Option<Bytes> {
        queue.get(0).map(|left| Bytes { len: left.len.min(self.bytes()), ..left })
    }
}

/// The sending direction of a connection.
pub(crate) struct Sending {
    outbound: Outbound,
    frames: FrameSize,
    /// Room for a frame and its tag.
    record: Box<[u8]>,
    /// Bytes of the record in progress; none until its frame has been sealed.
    sealed: usize,
    /// Those that have been sent.
    sent: usize,
    /// Bytes sent so far.
    bytes: u64,
}

impl Sending {
    pub(crate) fn new(outbound: Outbound, frames: FrameSize) -> Self {
        // Pages that no frame reaches use no memory.
        Sending { outbound, frames, record: vec![0; frames.record_bytes()].into(), sealed: 0, sent: 0, bytes: 0 }
    }

    /// Bytes of the longest record.
    pub(crate) fn record_bytes(&self) -> usize {
        self.record.len()
    }

    /// Bytes sent so far, with tags.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sends at most one frame, without blocking. Between two frames the other direction gets its turn, while the bytes
    /// that have arrived are still in the cache.
    pub(crate) fn progress(&mut self, queue: &mut Queue, mut stream: impl Write) -> io::Result<()> {
        while let Some(frame) = self.frames.first(queue) {
            if self.sealed == 0 {
                // SAFETY: guaranteed by the caller of `Queue::begin`.
                self.seal(unsafe { std::slice::from_raw_parts(frame.start, frame.len) });
            }
            match stream.write(&self.record[self.sent..self.sealed]) {
                Ok(done) => {
                    self.sent += done;
                    self.bytes += done as u64;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if self.sent == self.sealed {
                queue.advance(frame.len);
                (self.sealed, self.sent) = (0, 0);
                return Ok(());
            }
        }
        Ok(())
    }

    fn seal(&mut self, frame: &[u8]) {
        self.sealed = frame.len() + TAG_BYTES;
        let (bytes, tag) = self.record[..self.sealed].split_at_mut(frame.len());
        bytes.copy_from_slice(frame);
        tag.copy_from_slice(&self.outbound.seal(bytes));
    }
}

/// The receiving direction of a connection.
pub(crate) struct Receiving {
    inbound: Inbound,
    frames: FrameSize,
    /// The tag of this frame, as far as it has arrived.
    tag: [u8; TAG_BYTES],
    /// Bytes of this frame and its tag that have arrived.
    arrived: usize,
    /// Bytes that have arrived so far.
    bytes: u64,
}

impl Receiving {
    pub(crate) fn new(inbound: Inbound, frames: FrameSize) -> Self {
        Receiving { inbound, frames, tag: [0; TAG_BYTES], arrived: 0, bytes: 0 }
    }

    /// Bytes that have arrived so far, with tags.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Receives as much as possible without blocking, and opens each frame.
    pub(crate) fn progress(&mut self, queue: &mut Queue, mut stream: impl Read) -> io::Result<()> {
        while let Some(frame) = self.frames.first(queue) {
            // SAFETY: guaranteed by the caller of `Queue::begin`.
            let bytes = unsafe { std::slice::from_raw_parts_mut(frame.start, frame.len) };
            let of_bytes = self.arrived.min(frame.len);
            let of_tag = self.arrived.saturating_sub(frame.len);
            let rest = [&mut bytes[of_bytes..], &mut self.tag[of_tag..]];
            match stream.read_vectored(&mut rest.map(IoSliceMut::new)) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(done) => {
                    self.arrived += done;
                    self.bytes += done as u64;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if self.arrived == frame.len + TAG_BYTES {
                self.inbound.open(bytes, &self.tag)?;
                queue.advance(frame.len);
                self.arrived = 0;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::record::tests::CIPHERS;
    use crate::net::record::{Altered, Cipher};
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// A connection that takes and gives bytes in segments, and then blocks once.
    struct Pipe {
        bytes: VecDeque<u8>,
        /// In turns.
        segments: VecDeque<usize>,
        closed: bool,
    }

    impl Pipe {
        fn new(segments: &[usize]) -> Self {
            Pipe { bytes: VecDeque::new(), segments: segments.to_vec().into(), closed: false }
        }

        fn segment(&mut self) -> io::Result<usize> {
            self.segments.rotate_left(1);
            match self.segments[0] {
                0 => Err(ErrorKind::WouldBlock.into()),
                segment => Ok(segment),
            }
        }
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let segment = self.segment()?.min(bytes.len());
            self.bytes.extend(&bytes[..segment]);
            Ok(segment)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Read for Pipe {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let segment = self.segment()?.min(buffer.len()).min(self.bytes.len());
            match segment {
                0 if self.closed => Ok(0),
                0 => Err(ErrorKind::WouldBlock.into()),
                segment => self.bytes.read(&mut buffer[..segment]),
            }
        }
    }

    /// The bytes of these messages on the wire, sent in segments.
    fn wire(cipher: Cipher, frames: FrameSize, messages: &[Vec<u8>], segments: &[usize]) -> VecDeque<u8> {
        let mut pipe = Pipe::new(segments);
        let mut sending = Sending::new(Outbound::new(cipher, [1; 32]), frames);
        let mut queue = Queue::new(1);
        for message in messages {
            // SAFETY: the messages outlive the loop below, which completes them.
            unsafe { queue.begin(Bytes::of(message.as_ptr(), 0..message.len())) };
        }
        while !queue.is_complete() {
            sending.progress(&mut queue, &mut pipe).unwrap();
        }
        assert_eq!(queue.complete(), queue.begun());
        pipe.bytes
    }

    /// Receives messages of these lengths from these bytes, after which the connection ends.
    fn receive(
        cipher: Cipher,
        frames: FrameSize,
        bytes: VecDeque<u8>,
        lengths: &[usize],
        segments: &[usize],
    ) -> io::Result<Vec<Vec<u8>>> {
        let mut pipe = Pipe { bytes, closed: true, ..Pipe::new(segments) };
        let mut receiving = Receiving::new(Inbound::new(cipher, [1; 32], "link".into()), frames);
        let mut queue = Queue::new(1);
        let mut messages: Vec<Vec<u8>> = lengths.iter().map(|&length| vec![0; length]).collect();
        for message in &mut messages {
            // SAFETY: the messages outlive the loop below, after which no progress is asked for.
            unsafe { queue.begin(Bytes::of(message.as_mut_ptr(), 0..message.len())) };
        }
        while !queue.is_complete() {
            receiving.progress(&mut queue, &mut pipe)?;
        }
        assert_eq!(queue.complete(), queue.begun());
        assert!(pipe.bytes.is_empty(), "a message is longer on the wire");
        Ok(messages)
    }

    #[test]
    fn frames_are_shorter_where_connections_are_many() {
        let check = |nodes: usize, segments: usize| {
            assert_eq!(FrameSize::new(nodes).segments, segments, "{nodes}");
        };
        check(1, 4);
        check(2, 4);
        check(32, 4);
        check(33, 3);
        check(64, 2);
        check(66, 1);
        check(1024, 1);
    }

    #[test]
    fn one_tag_follows_each_frame() {
        let check = |nodes: usize, length: usize, frames: usize| {
            let bytes = wire(Cipher::of_processor(), FrameSize::new(nodes), &[vec![7; length]], &[usize::MAX]);
            assert_eq!(bytes.len(), length + frames * TAG_BYTES, "{length}");
        };
        check(2, 0, 0);
        check(2, 1, 1);
        check(2, 252 << 10, 1);
        check(2, (252 << 10) + 1, 2);
        check(2, 3 * (252 << 10), 3);
        check(128, 63 << 10, 1);
        check(128, (63 << 10) + 1, 2);
    }

    /// A reduction reads a message once it is complete, so a message with a wrong record never is.
    #[test]
    fn no_message_is_complete_before_all_its_records_are_right() {
        let frames = FrameSize::new(2);
        for (cipher, frame) in CIPHERS.into_iter().flat_map(|cipher| [0, 1, 2].map(|frame| (cipher, frame))) {
            let mut bytes = wire(cipher, frames, &[vec![7; 2 * frames.bytes() + 9]], &[usize::MAX]);
            bytes[frame * frames.record_bytes() + 5] ^= 1;
            let mut receiving = Receiving::new(Inbound::new(cipher, [1; 32], "link".into()), frames);
            let mut queue = Queue::new(1);
            let mut message = vec![0u8; 2 * frames.bytes() + 9];
            // SAFETY: the message outlives the only call that makes progress.
            unsafe { queue.begin(Bytes::of(message.as_mut_ptr(), 0..message.len())) };
            let error = receiving.progress(&mut queue, &mut bytes).unwrap_err();
            let named = format!("link: the tag of record {} is wrong: the bytes were changed on the way", frame + 1);
            assert_eq!((queue.complete(), error.to_string()), (0, named));
            // Those before it are right, and are handed out of the queue.
            assert_eq!(queue.get(0).map(|left| left.len), Some(message.len() - frame * frames.bytes()));
            assert!(message[..frame * frames.bytes()].iter().all(|&byte| byte == 7));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn messages_arrive_unchanged_or_fail(
            (frames, lengths) in prop::sample::select(&[2, 33, 128][..]).prop_map(FrameSize::new).prop_flat_map(|frames| {
                let frame = frames.bytes();
                let length = prop_oneof![0usize..100, frame - 9..2 * frame + 9];
                (Just(frames), prop::collection::vec(length, 1..5))
            }),
            (sent, received) in {
                let segments = || prop::collection::vec(prop_oneof![0usize..70, 1usize..1 << 20], 0..9);
                (segments(), segments())
            },
            (at, bit, other) in (any::<prop::sample::Index>(), 0u8..8, any::<prop::sample::Index>()),
            cipher in prop::sample::select(&CIPHERS[..]),
        ) {
            // Some segment is not empty.
            let sent = [&sent[..], &[frames.bytes()]].concat();
            let received = [&received[..], &[frames.bytes()]].concat();
            let message = |(i, &length): (usize, &usize)| (0..length).map(|j| (i * 31 + j * 7) as u8).collect();
            let messages: Vec<Vec<u8>> = lengths.iter().enumerate().map(message).collect();
            let bytes = wire(cipher, frames, &messages, &sent);
            prop_assert_eq!(receive(cipher, frames, bytes.clone(), &lengths, &received).unwrap(), messages);
            if !bytes.is_empty() {
                let (at, other) = (at.index(bytes.len()), other.index(bytes.len()));
                let fails = |change: &dyn Fn(&mut VecDeque<u8>), kind: ErrorKind| {
                    let mut changed = bytes.clone();
                    change(&mut changed);
                    let error = receive(cipher, frames, changed, &lengths, &received).unwrap_err();
                    (error.kind(), Altered::is(&error)) == (kind, kind == ErrorKind::InvalidData)
                };
                prop_assert!(fails(&|bytes| bytes[at] ^= 1 << bit, ErrorKind::InvalidData));
                prop_assert!(fails(&|bytes| bytes.truncate(at), ErrorKind::UnexpectedEof));
                if bytes[at] != bytes[other] {
                    prop_assert!(fails(&|bytes| bytes.swap(at, other), ErrorKind::InvalidData));
                }
            }
        }
    }
}
