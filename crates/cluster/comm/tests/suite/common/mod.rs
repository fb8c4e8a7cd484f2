//! Ranks as threads, with a deadline: a test that would hang fails instead.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::TcpListener;
use std::sync::mpsc;
use std::time::Duration;

use enmasse_comm::{AlgorithmChoice, Group, GroupOptions, JoinError, Rendezvous, TransportChoice};

/// Far longer than any test of this crate needs.
pub const DEADLINE: Duration = Duration::from_secs(300);

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

/// The rendezvous of `n` ranks at a free port of loopback.
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

/// A group of `n` ranks over a transport. They share this process but none of its memory: each maps the region for
/// itself.
pub fn joined(n: usize, transport: TransportChoice) -> Vec<Group> {
    join_all(rendezvous(n, transport)).into_iter().map(Result::unwrap).collect()
}

/// Every way in which ranks share data. The last ones are nodes whose ranks share memory: of two ranks each, in turns, all
/// but the last, and one, one and the rest.
pub const TRANSPORTS: [&str; 7] = ["threads", "shared", "tcp", "pairs", "cyclic", "all but one", "one, one, rest"];

/// Those of [`TRANSPORTS`] that are not the same for so many ranks.
pub fn transports(n: usize) -> &'static [&'static str] {
    &TRANSPORTS[..match n {
        0..=2 => 3,
        3 => 5,
        _ => 7,
    }]
}

/// The node of a rank of `n`, for the last of [`TRANSPORTS`].
fn node(transport: &str, rank: usize, n: usize) -> Option<usize> {
    match transport {
        "pairs" => Some(rank / 2),
        "cyclic" => Some(rank % 2),
        "all but one" => Some(usize::from(rank + 1 == n)),
        "one, one, rest" => Some(rank.min(2)),
        _ => None,
    }
}

/// The rendezvous of `n` ranks over one of [`TRANSPORTS`] except threads.
pub fn rendezvous_over(n: usize, transport: &str) -> Vec<Rendezvous> {
    let choice = match transport {
        "shared" => TransportChoice::Shared,
        "tcp" => TransportChoice::Tcp,
        _ => TransportChoice::Auto,
    };
    let mut ranks = rendezvous(n, choice);
    for (rank, rendezvous) in ranks.iter_mut().enumerate() {
        rendezvous.node = node(transport, rank, n).map(|node| node.to_string());
    }
    ranks
}

/// A group of `n` ranks over one of [`TRANSPORTS`].
pub fn groups(n: usize, transport: &str) -> Vec<Group> {
    match transport {
        "threads" => Group::threads(n).unwrap(),
        _ => join_all(rendezvous_over(n, transport)).into_iter().map(Result::unwrap).collect(),
    }
}

/// The same, made once: groups are used for many cases, since later operations must not depend on earlier ones.
pub fn kept_groups(n: usize, transport: &'static str) -> Vec<Group> {
    thread_local! {
        static GROUPS: RefCell<HashMap<(usize, &'static str), Vec<Group>>> = RefCell::default();
    }
    GROUPS.with_borrow_mut(|all| all.entry((n, transport)).or_insert_with(|| groups(n, transport)).clone())
}

/// The ranks of each node of `n` ranks over one of [`TRANSPORTS`], in the order of their first ranks.
pub fn nodes(n: usize, transport: &str) -> Vec<Vec<usize>> {
    let name = |rank: usize| match transport {
        "threads" | "shared" => 0,
        "tcp" => rank,
        _ => node(transport, rank, n).unwrap_or(0),
    };
    let mut nodes: Vec<Vec<usize>> = vec![];
    for rank in 0..n {
        match nodes.iter_mut().find(|node| name(node[0]) == name(rank)) {
            Some(node) => node.push(rank),
            None => nodes.push(vec![rank]),
        }
    }
    nodes
}

/// A group of `n` ranks over one of [`TRANSPORTS`], whose all-reduces go by an algorithm.
pub fn groups_by(n: usize, transport: &str, all_reduce: impl Into<AlgorithmChoice>) -> Vec<Group> {
    let options = GroupOptions { all_reduce: all_reduce.into(), ..GroupOptions::default() };
    if transport == "threads" {
        return Group::threads_with(n, options).unwrap();
    }
    let mut ranks = rendezvous_over(n, transport);
    ranks.iter_mut().for_each(|rank| rank.options = options);
    join_all(ranks).into_iter().map(Result::unwrap).collect()
}
