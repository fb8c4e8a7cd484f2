//! Signals to the launcher as readable streams.

use std::io::{self, ErrorKind, Read};
use std::os::unix::net::UnixStream;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{SigId, low_level};

/// One signal: its handler writes a byte for each arrival.
pub(crate) struct SignalStream {
    pub(crate) number: i32,
    pub(crate) stream: UnixStream,
    registration: SigId,
}

impl SignalStream {
    /// The signals that ask the launcher to stop.
    ///
    /// Others keep their default action: they end the launcher, and the kernel then ends the ranks.
    pub(crate) fn stop_requests() -> io::Result<Vec<SignalStream>> {
        [SIGINT, SIGTERM].into_iter().map(SignalStream::new).collect()
    }

    fn new(number: i32) -> io::Result<Self> {
        let (stream, sender) = UnixStream::pair()?;
        stream.set_nonblocking(true)?;
        let registration = low_level::pipe::register(number, sender)?;
        Ok(SignalStream { number, stream, registration })
    }

    /// How often the signal arrived since the last call.
    pub(crate) fn arrivals(&mut self) -> usize {
        let mut bytes = [0; 64];
        let mut count = 0;
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return count,
                Ok(read) => count += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return count,
            }
        }
    }
}

impl Drop for SignalStream {
    /// The handler stays and does nothing, so a process that goes on after a launch ignores these signals.
    fn drop(&mut self) {
        low_level::unregister(self.registration);
    }
}
