//! TCP connections between ranks: the proof of the token, bounded frames with their MACs, and
//! accepting connections without blocking.
//!
//! Every connection begins with a [`handshake`] that proves the token on both sides, and binds
//! purpose, ranks and attempt. From then on every frame has a MAC ([`mac`]) over its number, length
//! and bytes, with one key for each direction. A wrong MAC is a cause that names the link and no
//! rank. Data are cut into frames of 128 KiB, hashed just before they are sent. There is no option
//! to turn this off. Nothing is encrypted; `SECURITY.md` says what is trusted.
//!
//! Ranks on loopback without a token prove a secret of their user (`Token::of_user`).

use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub(crate) mod acceptor;
pub(crate) mod channel;
pub(crate) mod handshake;
pub(crate) mod link;
pub(crate) mod mac;
pub(crate) mod refused;

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
