//! Live ranks that stall: the others name them first in a warning, and then in the cause.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{DEADLINE, join_all, rendezvous_over, run_ranks};
use enmasse_comm::{Cause, CauseKind, FlightRecord, Group, GroupEvent, GroupOptions};

/// Times out within a test's time, and warns well before.
fn impatient(timeout: Duration) -> GroupOptions {
    GroupOptions { timeout, stall_warning: timeout / 4, ..GroupOptions::default() }
}

/// The observations of a rank in a group where others stall.
struct Seen {
    stalls: Vec<Cause>,
    cause: Cause,
    record: FlightRecord,
}

/// After one barrier, the ranks `late` do something else until the group has failed, and the others sum.
fn wait_for(late: &'static [usize], groups: Vec<Group>) -> Vec<Seen> {
    run_ranks(groups, move |group| {
        let (events, heard) = channel();
        let recorder = group.flight_recorder().clone();
        group.observe(move |event| {
            // The rank itself may be gone.
            let _ = events.send((event.clone(), recorder.record()));
        });
        group.barrier().unwrap();
        if late.contains(&group.rank()) {
            group.flight_recorder().at("reading a batch");
        } else {
            assert_eq!(group.all_reduce(&mut [1f32; 8]).unwrap_err().kind, CauseKind::Timeout);
        }
        let mut stalls = vec![];
        loop {
            match heard.recv_timeout(DEADLINE).expect("an end of the group") {
                (GroupEvent::Stalled(stall), _) => stalls.push((*stall).clone()),
                (GroupEvent::Failed(cause), record) => return Seen { stalls, cause: (*cause).clone(), record },
                (other, _) => panic!("{other:?}"),
            }
        }
    })
}

fn check(late: &'static [usize], groups: Vec<Group>, message: &str) {
    let operation = "all_reduce(sum) of 8 f32";
    for (rank, seen) in wait_for(late, groups).into_iter().enumerate() {
        let Seen { stalls, cause, record } = seen;
        assert_eq!((cause.kind, cause.rank, cause.sequence), (CauseKind::Timeout, Some(late[0]), 2), "{cause}");
        assert_eq!(cause.operation, operation);
        assert!(cause.message.contains(message), "{cause}");
        assert_eq!(stalls.len(), usize::from(rank == 0), "rank {rank}: {stalls:?}");
        for stall in stalls {
            assert_eq!((stall.kind, stall.rank, stall.sequence), (cause.kind, cause.rank, cause.sequence), "{stall}");
        }
        // A rank that waited was in its operation; a late rank had not joined it.
        let last = record.operations.last().unwrap();
        let found = (last.sequence, last.operation.as_str(), last.ended.is_some(), record.activity.as_str());
        let expected = match late.contains(&rank) {
            true => (1, "barrier", true, "reading a batch"),
            false => (2, operation, false, "starting"),
        };
        assert_eq!(found, expected, "rank {rank}");
    }
}

#[test]
fn stalled_threads_are_named() {
    let groups = |n| Group::threads_with(n, impatient(Duration::from_secs(5))).unwrap();
    // All at once, since each takes as long as the ranks wait.
    std::thread::scope(|scope| {
        scope.spawn(|| check(&[1], groups(2), "it had not joined the operation after"));
        scope.spawn(|| check(&[0], groups(3), "it had not joined the operation after"));
        scope.spawn(|| check(&[0, 2], groups(3), "it and rank 2 had not joined the operation after"));
        scope.spawn(|| check(&[1, 2, 3], groups(4), "it and ranks 2 3 had not joined the operation after"));
    });
}

#[test]
fn stalled_ranks_report_their_activity_over_every_transport() {
    let check = |transport: &str, n: usize, late: &'static [usize]| {
        let mut ranks = rendezvous_over(n, transport);
        for rank in &mut ranks {
            // An activity is reported once it has lasted for a heartbeat.
            rank.heartbeat = Duration::from_secs(2);
            rank.options = impatient(rank.heartbeat * 4);
        }
        let groups = join_all(ranks).into_iter().map(Result::unwrap).collect();
        // The ranks late together are named together.
        let message = if late.len() == 1 { "it has been reading a batch for" } else { "it and rank 3 had not joined" };
        check(late, groups, message);
    };
    std::thread::scope(|scope| {
        for transport in ["shared", "tcp"] {
            scope.spawn(move || check(transport, 3, &[0]));
            scope.spawn(move || check(transport, 3, &[2]));
        }
        // Late on this node, on another, and on both: the ranks of a node tell each other what they hear.
        scope.spawn(move || check("pairs", 4, &[1]));
        scope.spawn(move || check("pairs", 4, &[3]));
        scope.spawn(move || check("cyclic", 5, &[2, 3]));
    });
}

#[test]
fn a_rank_that_joins_in_time_is_waited_for() {
    let options = GroupOptions { stall_warning: Duration::from_millis(1), ..GroupOptions::default() };
    let (stalled, told) = channel();
    let groups = Group::threads_with(2, options).unwrap();
    groups[0].observe(move |event| {
        let GroupEvent::Stalled(stall) = event else { return };
        let _ = stalled.send(stall.to_string());
    });
    let told = Arc::new(Mutex::new(told));
    let results = run_ranks(groups, move |group| {
        // The late rank joins after the other has reported that it waits.
        let text = (group.rank() == 1).then(|| told.lock().unwrap().recv_timeout(DEADLINE).unwrap());
        (text, group.barrier())
    });
    let text = results[1].0.as_deref().unwrap();
    let expected = "kept the others waiting during barrier #1: it had not joined the operation after ";
    assert!(text.contains(expected), "{text}");
    assert!(results.iter().all(|(_, result)| result.is_ok()));
}
