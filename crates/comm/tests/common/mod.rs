//! Ranks as threads, with a deadline: a test that would hang fails instead.

use std::sync::mpsc;
use std::time::Duration;

use enmasse_comm::Group;

/// No test of this crate needs longer, by far.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Runs `body` once per group, each in a thread of its own, and returns the results in the order of the groups.
pub fn run_ranks<R: Send + 'static>(groups: Vec<Group>, body: impl Fn(Group) -> R + Clone + Send + 'static) -> Vec<R> {
    let receivers: Vec<_> = groups
        .into_iter()
        .map(|group| {
            let (sender, receiver) = mpsc::channel();
            let body = body.clone();
            std::thread::spawn(move || sender.send(body(group)));
            receiver
        })
        .collect();
    receivers.into_iter().map(|receiver| receiver.recv_timeout(DEADLINE).expect("a rank hangs or panicked")).collect()
}
