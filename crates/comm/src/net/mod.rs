//! TCP connections between ranks: bounded frames, the proof of the token, and accepting connections without blocking.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub(crate) mod acceptor;
pub(crate) mod channel;
pub(crate) mod handshake;

/// Size limit of a frame's payload, in bytes: a value of the store and its key.
pub(crate) const FRAME_LIMIT: usize = (1 << 20) + 1024;

/// One message. On the wire: the payload's length (4 bytes, little-endian), kind, payload.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub kind: u8,
    pub payload: Vec<u8>,
}

/// Writes a frame with a single write.
pub(crate) fn write_frame(mut stream: impl Write, kind: u8, payload: &[u8]) -> io::Result<()> {
    if payload.len() > FRAME_LIMIT {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("a message of {} bytes", payload.len())));
    }
    let [l0, l1, l2, l3] = (payload.len() as u32).to_le_bytes();
    let head = [l0, l1, l2, l3, kind];
    if payload.is_empty() {
        // Heartbeats are sent during steps, which allocate nothing.
        return stream.write_all(&head);
    }
    stream.write_all(&[&head, payload].concat())
}

/// Reads a frame of at most `limit` bytes of payload.
pub(crate) fn read_frame(mut stream: impl Read, limit: usize) -> io::Result<Frame> {
    let mut head = [0; 5];
    stream.read_exact(&mut head)?;
    let [l0, l1, l2, l3, kind] = head;
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    if length > limit {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {length} bytes")));
    }
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload)?;
    Ok(Frame { kind, payload })
}

/// Waits until the descriptor is readable or at its end; false after `limit`.
pub(crate) fn readable(descriptor: impl AsFd, limit: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // Rounded up, so that a timeout of poll means that the deadline has passed.
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(ready) => return Ok(ready > 0),
        }
    }
}

/// Sends small messages at once, and limits every read and write to `limit`.
pub(crate) fn configure(stream: &TcpStream, limit: Duration) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_bounded_on_both_sides() {
        let mut bytes = vec![];
        write_frame(&mut bytes, 7, b"hello").unwrap();
        assert_eq!(read_frame(&bytes[..], 5).unwrap(), Frame { kind: 7, payload: b"hello".to_vec() });
        assert_eq!(read_frame(&bytes[..], 4).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(read_frame(&bytes[..9], 5).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(write_frame(&mut bytes, 7, &vec![0; FRAME_LIMIT + 1]).is_err());
        assert!(read_frame(&[255; 100][..], FRAME_LIMIT).is_err());
    }
}
