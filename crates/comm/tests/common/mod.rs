//! Ranks as threads, with a deadline: a test that would hang fails instead.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::net::TcpListener;
use std::sync::mpsc;
use std::time::Duration;

use enmasse_comm::{Group, JoinError, Rendezvous, TransportChoice};

/// No test of this crate needs longer, by far.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Runs `body` once per item, each in a thread of its own, and returns the results in the order of the items.
pub fn run_all<T: Send + 'static, R: Send + 'static>(
    items: Vec<T>,
    body: impl Fn(T) -> R + Clone + Send + 'static,
) -> Vec<R> {
    let receivers: Vec<_> = items
        .into_iter()
        .map(|item| {
            let (sender, receiver) = mpsc::channel();
            let body = body.clone();
            std::thread::spawn(move || sender.send(body(item)));
            receiver
        })
        .collect();
    receivers.into_iter().map(|receiver| receiver.recv_timeout(DEADLINE).expect("a rank hangs or panicked")).collect()
}

/// The same for ranks.
pub fn run_ranks<R: Send + 'static>(groups: Vec<Group>, body: impl Fn(Group) -> R + Clone + Send + 'static) -> Vec<R> {
    run_all(groups, body)
}

/// What `n` ranks need to meet on a free port of loopback.
pub fn rendezvous(n: usize, transport: TransportChoice) -> Vec<Rendezvous> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    let mut ranks: Vec<_> = (0..n).map(|rank| Rendezvous::tcp(&address, rank, n).unwrap()).collect();
    for rank in &mut ranks {
        rank.transport = transport;
    }
    ranks[0].listener = Some(listener);
    ranks
}

/// Joins every rank in a thread of its own.
pub fn join_all(ranks: Vec<Rendezvous>) -> Vec<Result<Group, JoinError>> {
    run_all(ranks, Rendezvous::join)
}

/// A group of `n` ranks over a transport. They share this process, but nothing in it: each maps the memory for itself.
pub fn joined(n: usize, transport: TransportChoice) -> Vec<Group> {
    join_all(rendezvous(n, transport)).into_iter().map(Result::unwrap).collect()
}
