//! A connection after its handshake: messages in frames of sealed records.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, PoisonError};

use super::record::{Inbound, Outbound, TAG_BYTES};
use crate::locks::lock;

/// Size limit of a frame's payload, in bytes: an answer of the store, or a value and its subject.
pub(crate) const FRAME_LIMIT: usize = (1 << 20) + 1024;
/// Bytes of a head: the payload's length (4 bytes, little-endian) and kind.
const HEAD_BYTES: usize = 5;

/// One message. On the wire: the head as a record; then, unless it is empty, the payload as another. A changed length is
/// therefore noticed before anything is allocated for it, or waited for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub kind: u8,
    pub payload: Vec<u8>,
}

/// Writes a frame with a single write.
pub(crate) fn write_frame(mut stream: impl Write, outbound: &mut Outbound, kind: u8, payload: &[u8]) -> io::Result<()> {
    let [l0, l1, l2, l3] = (payload.len() as u32).to_le_bytes();
    let mut head = [0; HEAD_BYTES + TAG_BYTES];
    let (plain, tag) = head.split_at_mut(HEAD_BYTES);
    plain.copy_from_slice(&[l0, l1, l2, l3, kind]);
    tag.copy_from_slice(&outbound.seal(plain));
    if payload.is_empty() {
        // Heartbeats are sent during steps, which allocate nothing.
        return stream.write_all(&head);
    }
    let mut frame = [&head, payload, &[0; TAG_BYTES]].concat();
    let (payload, tag) = frame[head.len()..].split_at_mut(payload.len());
    tag.copy_from_slice(&outbound.seal(payload));
    stream.write_all(&frame)
}

/// Reads a frame of at most `limit` bytes of payload.
pub(crate) fn read_frame(mut stream: impl Read, inbound: &mut Inbound, limit: usize) -> io::Result<Frame> {
    let (mut head, mut tag) = ([0; HEAD_BYTES], [0; TAG_BYTES]);
    stream.read_exact(&mut head)?;
    stream.read_exact(&mut tag)?;
    inbound.open(&mut head, &tag)?;
    let [l0, l1, l2, l3, kind] = head;
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    if length > limit {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {length} bytes")));
    }
    let mut payload = vec![0; length];
    if length > 0 {
        stream.read_exact(&mut payload)?;
        stream.read_exact(&mut tag)?;
        inbound.open(&mut payload, &tag)?;
    }
    Ok(Frame { kind, payload })
}

/// A connection whose two ends have proved the token. Any thread may send; only one should receive.
pub(crate) struct Link {
    stream: TcpStream,
    /// `None` once a write has failed: nobody knows how much of its frame was sent.
    outbound: Mutex<Option<Outbound>>,
    inbound: Mutex<Inbound>,
}

impl Link {
    pub(crate) fn new(stream: TcpStream, outbound: Outbound, inbound: Inbound) -> Self {
        Link { stream, outbound: Mutex::new(Some(outbound)), inbound: Mutex::new(inbound) }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends one message.
    pub(crate) fn send(&self, kind: u8, payload: &[u8]) -> io::Result<()> {
        if payload.len() > FRAME_LIMIT {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("a message of {} bytes", payload.len())));
        }
        let mut running = lock(&self.outbound);
        let outbound = running.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        write_frame(&self.stream, outbound, kind, payload).inspect_err(|_| *running = None)
    }

    /// Waits for a message with at most `limit` bytes of payload.
    pub(crate) fn receive(&self, limit: usize) -> io::Result<Frame> {
        self.receive_through(&self.stream, limit)
    }

    /// The same through a reader of this connection's stream.
    pub(crate) fn receive_through(&self, stream: impl Read, limit: usize) -> io::Result<Frame> {
        read_frame(stream, &mut lock(&self.inbound), limit)
    }

    /// The parts, for frames of another form. Fails after a failed write.
    pub(crate) fn into_parts(self) -> io::Result<(TcpStream, Outbound, Inbound)> {
        let outbound = self.outbound.into_inner().unwrap_or_else(PoisonError::into_inner);
        let inbound = self.inbound.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok((self.stream, outbound.ok_or(io::ErrorKind::BrokenPipe)?, inbound))
    }
}

/// Without the keys.
impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Link").field(&self.stream).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::CIPHERS;
    use super::super::record::{Altered, Cipher};
    use super::*;
    use proptest::prelude::*;

    /// The bytes of these messages on the wire.
    fn wire(cipher: Cipher, messages: &[(u8, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = vec![];
        let mut outbound = Outbound::new(cipher, [1; 32]);
        for (kind, payload) in messages {
            write_frame(&mut bytes, &mut outbound, *kind, payload).unwrap();
        }
        bytes
    }

    /// The messages that are read from these bytes before the first error, and the error.
    fn read(cipher: Cipher, mut bytes: &[u8], limit: usize) -> (Vec<(u8, Vec<u8>)>, io::Error) {
        let mut messages = vec![];
        let mut inbound = Inbound::new(cipher, [1; 32], "link".into());
        loop {
            match read_frame(&mut bytes, &mut inbound, limit) {
                Ok(frame) => messages.push((frame.kind, frame.payload)),
                Err(error) => return (messages, error),
            }
        }
    }

    #[test]
    fn frames_are_bounded_on_both_sides() {
        let cipher = Cipher::of_processor();
        let bytes = wire(cipher, &[(7, b"hello".to_vec())]);
        assert_eq!(read(cipher, &bytes, 5).0, [(7, b"hello".to_vec())]);
        let (none, error) = read(cipher, &bytes, 4);
        assert_eq!((none, error.to_string()), (vec![], "a message of 5 bytes".to_owned()));
        assert!(Altered::is(&read(cipher, &[255; 100], FRAME_LIMIT).1));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let outbound = Outbound::new(cipher, [1; 32]);
        let inbound = Inbound::new(cipher, [1; 32], String::new());
        let link = Link::new(stream, outbound, inbound);
        assert_eq!(link.send(7, &vec![0; FRAME_LIMIT + 1]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    proptest! {
        #[test]
        fn messages_arrive_whole_or_not_at_all(
            messages in prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 0..300)), 1..6),
            cipher in prop::sample::select(&CIPHERS[..]),
            at: prop::sample::Index,
            bit in 0u8..8,
        ) {
            let bytes = wire(cipher, &messages);
            let (all, end) = read(cipher, &bytes, FRAME_LIMIT);
            prop_assert_eq!((&all, end.kind()), (&messages, io::ErrorKind::UnexpectedEof));
            for (_, payload) in messages.iter().filter(|(_, payload)| payload.len() >= 16) {
                prop_assert!(bytes.windows(16).all(|window| window != &payload[..16]));
            }

            let mut flipped = bytes.clone();
            flipped[at.index(bytes.len())] ^= 1 << bit;
            let (some, error) = read(cipher, &flipped, FRAME_LIMIT);
            prop_assert!(Altered::is(&error) && some.len() < messages.len() && messages.starts_with(&some));

            let (some, end) = read(cipher, &bytes[..at.index(bytes.len())], FRAME_LIMIT);
            prop_assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
            prop_assert!(some.len() < messages.len() && messages.starts_with(&some));

            // Any part of the stream once more, as a relay may send it.
            let (some, error) = read(cipher, &[&bytes[..], &bytes[at.index(bytes.len())..]].concat(), FRAME_LIMIT);
            prop_assert!(some == messages && (Altered::is(&error) || error.kind() == io::ErrorKind::UnexpectedEof));
        }
    }
}
