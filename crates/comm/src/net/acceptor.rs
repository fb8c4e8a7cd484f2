//! Accepts connections in such a way that strangers without the token cannot block the ranks.
//!
//! Every connection proves the token in its own thread, within a deadline. The number of unproven connections is
//! limited: when one more arrives, the oldest is closed, since a rank's own proof takes only milliseconds.

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::handshake::{Introduction, receive};
use super::link::Link;
use crate::token::Token;

/// Limit of connections that are proving the token at the same time.
const PENDING: usize = 64;
/// Time limit of one proof.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Handles a connection that has proved the token; the introduction has not been answered yet. Runs in the connection's
/// own thread.
pub(crate) type Admit = dyn Fn(Link, Introduction) + Send + Sync;

/// A listening socket with its thread. Dropping it closes the socket; accepted connections stay open.
pub(crate) struct Acceptor {
    address: SocketAddr,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    pub(crate) fn start(listener: TcpListener, token: Token, admit: Arc<Admit>) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let thread = std::thread::Builder::new().name("enmasse-accept".into()).spawn({
            let wake = wake.clone();
            move || serve(&listener, &wake, &token, &admit)
        })?;
        Ok(Acceptor { address, wake, thread: Some(thread) })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        // An event counter accepts any number below its maximum.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Connections that have not proved the token yet, oldest first.
#[derive(Default)]
struct Pending {
    next: u64,
    streams: VecDeque<(u64, TcpStream)>,
}

fn serve(listener: &TcpListener, wake: &OwnedFd, token: &Token, admit: &Arc<Admit>) {
    let pending = Arc::new(Mutex::new(Pending::default()));
    loop {
        let mut ready = [PollFd::new(listener, PollFlags::IN), PollFd::new(wake, PollFlags::IN)];
        // This wait has no deadline, but an owner: dropping the acceptor ends it.
        match poll(&mut ready, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        if !ready[1].revents().is_empty() {
            break;
        }
        match listener.accept() {
            Ok((stream, _)) => begin(stream, &pending, token.clone(), admit.clone()),
            // The connection is gone again, or too many files are open; both pass. A short pause keeps this loop from
            // spinning.
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(1)),
            Err(_) => {}
        }
    }
    for (_, stream) in lock(&pending).streams.drain(..) {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn begin(stream: TcpStream, pending: &Arc<Mutex<Pending>>, token: Token, admit: Arc<Admit>) {
    // A connection that cannot be kept is dropped; a rank tries again.
    let Ok(copy) = stream.try_clone() else { return };
    let number = {
        let mut pending = lock(pending);
        if pending.streams.len() == PENDING
            && let Some((_, oldest)) = pending.streams.pop_front()
        {
            let _ = oldest.shutdown(Shutdown::Both);
        }
        pending.next += 1;
        let number = pending.next;
        pending.streams.push_back((number, copy));
        number
    };
    let forget = {
        let pending = pending.clone();
        move || lock(&pending).streams.retain(|(other, _)| *other != number)
    };
    let forget_if_unstarted = forget.clone();
    let thread = std::thread::Builder::new().name("enmasse-handshake".into()).spawn(move || {
        let received = receive(stream, &token, HANDSHAKE);
        forget();
        if let Ok((link, introduction)) = received {
            admit(link, introduction);
        }
    });
    if thread.is_err() {
        forget_if_unstarted();
    }
}

fn lock(pending: &Mutex<Pending>) -> MutexGuard<'_, Pending> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::handshake::{Purpose, answer, introduce};
    use crate::operation::Identity;
    use std::sync::mpsc;

    #[test]
    fn strangers_cannot_block_ranks() {
        let token = Token::generate().unwrap();
        let (sender, receiver) = mpsc::channel();
        let admit: Arc<Admit> = Arc::new(move |link, who| {
            answer(&link, None).unwrap();
            sender.send(who).unwrap();
        });
        let acceptor = Acceptor::start(TcpListener::bind("127.0.0.1:0").unwrap(), token.clone(), admit).unwrap();
        let strangers: Vec<_> = (0..2 * PENDING).map(|_| TcpStream::connect(acceptor.address()).unwrap()).collect();
        let stream = TcpStream::connect(acceptor.address()).unwrap();
        let (identity, host) = (Identity::default(), "h".to_owned());
        let who = Introduction { purpose: Purpose::Data, rank: 1, target: 0, world_size: 2, identity, host };
        introduce(stream, &token, &who, HANDSHAKE).unwrap();
        assert_eq!(receiver.recv_timeout(HANDSHAKE).unwrap(), who);
        drop(acceptor);
        drop(strangers);
    }
}
