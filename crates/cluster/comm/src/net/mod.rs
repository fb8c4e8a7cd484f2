//! TCP connections between ranks: the proof of the token, encrypted frames of bounded size, and
//! accepting connections without blocking.
//!
//! Every connection begins with a [`handshake`] that proves the token on both sides, and binds
//! purpose, ranks and attempt. From then on everything is encrypted and authenticated ([`record`]), with
//! one key for each direction. A wrong tag is a cause that names the link and no rank. Data are cut
//! into records of 252 KiB, sealed just before they are sent. There is no option to turn this off.
//! `SECURITY.md` says what is trusted.
//!
//! Ranks on loopback without a token prove a secret of their user (`Token::of_user`).

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub(crate) mod acceptor;
pub(crate) mod channel;
pub(crate) mod handshake;
pub(crate) mod link;
pub(crate) mod record;
pub(crate) mod refused;

/// Connects within `limit`. The error of an address without a listener is [`io::ErrorKind::ConnectionRefused`].
///
/// A connection to one of the ports from which Linux also takes a connection's own port meets itself once in thousands of
/// attempts, if nobody listens there. It would then hold the port that rank 0 is about to listen on.
pub(crate) fn connect(address: &SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(address, limit)?;
    match stream.local_addr()? == stream.peer_addr()? {
        true => Err(io::ErrorKind::ConnectionRefused.into()),
        false => Ok(stream),
    }
}

/// The time until a deadline; an error once it has passed.
pub(crate) fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
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
    use std::net::TcpListener;

    /// A rank that waited for rank 0 at such a port was refused by itself, and rank 0 found the port taken.
    #[test]
    fn no_connection_meets_itself() {
        // Linux gives even ports to connections and odd ones to listeners, as long as it has both. It goes through all.
        let port = (40_000..50_000).step_by(2).find(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok());
        let address = SocketAddr::from(([127, 0, 0, 1], port.unwrap()));
        for stream in (0..40_000).filter_map(|_| connect(&address, Duration::from_secs(60)).ok()) {
            assert_ne!(stream.local_addr().unwrap(), stream.peer_addr().unwrap());
        }
    }
}
