//! Operations of another library: watched, recorded, and ended with the group.

use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::common::{DEADLINE, TRANSPORTS, join_all, rendezvous_over, run_ranks};
use enmasse_comm::{Cause, CauseKind, Group, GroupEvent, GroupOptions};

/// A library without deadlines: a wait in it ends when it is done, or aborted from another thread.
#[derive(Clone, Default)]
struct Library {
    /// Whether it succeeded, once it has ended.
    state: Arc<(Mutex<Option<bool>>, Condvar)>,
}

impl Library {
    fn end(&self, is_done: bool) {
        self.state.0.lock().unwrap().get_or_insert(is_done);
        self.state.1.notify_all();
    }

    fn ends_well(&self) -> bool {
        let state = self.state.0.lock().unwrap();
        let (state, time) = self.state.1.wait_timeout_while(state, DEADLINE, |state| state.is_none()).unwrap();
        assert!(!time.timed_out(), "the library was not aborted");
        state.unwrap()
    }

    /// Ends with the group, as NCCL's communicators are aborted.
    fn abort_with(&self, group: &Group) {
        let library = self.clone();
        group.observe(move |event| {
            if let GroupEvent::Failed(_) = event {
                library.end(false);
            }
        });
    }
}

/// An activity is reported once it has lasted for a heartbeat.
const HEARTBEAT: Duration = Duration::from_secs(2);

fn groups(n: usize, transport: &str, heartbeat: Duration, options: GroupOptions) -> Vec<Group> {
    if transport == "threads" {
        return Group::threads_with(n, options).unwrap();
    }
    let mut ranks = rendezvous_over(n, transport);
    for rank in &mut ranks {
        (rank.heartbeat, rank.options) = (heartbeat, options);
    }
    join_all(ranks).into_iter().map(Result::unwrap).collect()
}

/// The ranks' reports about a hanging library, in a group of the last two of three. The ranks for which `comes` holds
/// wait in it.
fn hang(transport: &str, heartbeat: Duration, comes: fn(usize) -> bool) -> Vec<(Arc<Cause>, Vec<String>)> {
    let options =
        GroupOptions { timeout: HEARTBEAT * 4, stall_warning: Duration::from_secs(1), ..GroupOptions::default() };
    run_ranks(groups(3, transport, heartbeat, options), move |group| {
        let part = group.split((group.rank() > 0).then_some(0), 0).unwrap();
        let (events, heard) = channel();
        group.observe(move |event| {
            // The rank itself may be gone.
            let _ = events.send(event.clone());
        });
        let library = Library::default();
        library.abort_with(&group);
        if let Some(part) = part.filter(|part| comes(part.job_rank(part.rank()))) {
            part.watch("ncclBroadcast", 8).unwrap().done().unwrap();
            let watch = part.watch("ncclAllReduce", 4096).unwrap();
            assert!(!library.ends_well());
            let cause = watch.check().unwrap_err();
            assert_eq!(watch.done(), Err(cause));
            let operations = part.flight_recorder().record().operations;
            let last: Vec<_> = operations.iter().rev().take(2).map(|op| (&*op.operation, op.sequence)).collect();
            let expected = [("ncclAllReduce of 4096 bytes in group 1", 2), ("ncclBroadcast of 8 bytes in group 1", 1)];
            assert_eq!(last, expected);
            let ended: Vec<_> = operations.iter().rev().take(2).map(|op| op.ended.is_some()).collect();
            assert_eq!(ended, [false, true]);
        }
        let mut stalls = vec![];
        loop {
            match heard.recv_timeout(DEADLINE).expect("an end of the group") {
                GroupEvent::Stalled(stall) => stalls.push(stall.to_string()),
                GroupEvent::Failed(cause) => return (cause, stalls),
                other => panic!("{other:?}"),
            }
        }
    })
}

fn check(transport: &str, heartbeat: Duration, comes: fn(usize) -> bool, rank: Option<usize>, message: &[&str]) {
    let results = hang(transport, heartbeat, comes);
    for (place, (cause, stalls)) in results.iter().enumerate() {
        assert_eq!((cause, cause.kind), (&results[0].0, CauseKind::Timeout), "{transport}");
        assert_eq!(cause.rank, rank, "{cause}");
        assert_eq!((&*cause.operation, cause.sequence), ("ncclAllReduce of 4096 bytes in group 1", 2));
        // A busy machine notices the end of the limit later.
        assert!(message.iter().all(|part| cause.message.contains(part)), "{cause}");
        assert_eq!(stalls.len(), usize::from(place == 0), "{transport}, rank {place}: {stalls:?}");
    }
}

#[test]
fn a_hanging_library_ends_the_group() {
    std::thread::scope(|scope| {
        for transport in TRANSPORTS {
            let late = "it had not joined the operation after ";
            scope.spawn(move || check(transport, HEARTBEAT, |rank| rank == 1, Some(2), &[late]));
        }
        for transport in ["threads", "tcp"] {
            let joined = ["after ", " s; all ranks have joined it"];
            scope.spawn(move || check(transport, HEARTBEAT, |_| true, None, &joined));
        }
        // Nothing is reported before the end.
        let unknown = ["after ", " s; the flight records of all ranks show which one has not joined it"];
        scope.spawn(move || check("tcp", DEADLINE, |rank| rank == 1, None, &unknown));
    });
}

/// Four ranks on two nodes. Rank 0, which is asked, is late, or asks.
#[test]
fn no_late_rank_was_named_over_several_nodes() {
    let check = |late: &'static [usize], message: &str| {
        let options = GroupOptions { timeout: HEARTBEAT * 4, ..GroupOptions::default() };
        let causes = run_ranks(groups(4, "pairs", HEARTBEAT, options), move |group| {
            let library = Library::default();
            library.abort_with(&group);
            // All have joined another operation before.
            group.watch("ncclBroadcast", 8).unwrap().done().unwrap();
            let watch = (!late.contains(&group.rank())).then(|| group.watch("ncclAllReduce", 4096).unwrap());
            assert!(!library.ends_well());
            drop(watch);
            group.cause().unwrap()
        });
        for cause in causes {
            assert_eq!((cause.rank, cause.kind), (Some(late[0]), CauseKind::Timeout), "{cause}");
            assert!(
                cause.message.starts_with(message) && cause.message.contains("; it has been starting for "),
                "{cause}"
            );
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| check(&[0], "it had not joined the operation after "));
        scope.spawn(|| check(&[3], "it had not joined the operation after "));
        scope.spawn(|| check(&[0, 2, 3], "it and ranks 2 3 had not joined the operation after "));
    });
}

#[test]
fn a_library_that_ends_in_time_is_waited_for() {
    let options = GroupOptions { stall_warning: Duration::from_millis(1), ..GroupOptions::default() };
    let group = Group::threads_with(2, options).unwrap().swap_remove(0);
    let library = Library::default();
    // The library ends after the group has reported that it takes long.
    group.observe({
        let library = library.clone();
        move |event| {
            if let GroupEvent::Stalled(stall) = event {
                assert_eq!(stall.operation, "MPI_Alltoall of 12 bytes");
                library.end(true);
            }
        }
    });
    let watch = group.watch("MPI_Alltoall", 12).unwrap();
    assert!(library.ends_well());
    assert_eq!((watch.check(), watch.done()), (Ok(()), Ok(())));
    assert!(group.flight_recorder().record().operations[0].ended.is_some());
}

#[test]
fn the_failure_of_any_rank_ends_the_wait_for_a_library() {
    for transport in TRANSPORTS {
        let causes = run_ranks(groups(2, transport, Duration::from_secs(5), GroupOptions::default()), |group| {
            let library = Library::default();
            library.abort_with(&group);
            if group.rank() == 1 {
                group.abort(group.own_cause(CauseKind::NonFinite, "loss of step 9"));
            }
            match group.watch("ncclAllReduce", 4) {
                Ok(watch) => {
                    assert!(!library.ends_well());
                    watch.done().unwrap_err()
                }
                Err(cause) => cause,
            }
        });
        for cause in causes {
            assert_eq!((cause.rank, &*cause.message), (Some(1), "loss of step 9"), "{transport}");
        }
    }
}

#[test]
fn dropping_a_watch_neither_fails_nor_ends_the_operation() {
    let options = GroupOptions { timeout: Duration::from_millis(50), ..GroupOptions::default() };
    let group = Group::threads_with(2, options).unwrap().swap_remove(0);
    drop(group.watch("first", 1).unwrap());
    let (failed, heard) = channel();
    group.observe(move |event| {
        // The test may be over.
        let _ = failed.send(format!("{event:?}"));
    });
    // The watch that is kept fails the group; the watchdog ignored the dropped one.
    let _kept = group.watch("second", 2).unwrap();
    assert!(heard.recv_timeout(DEADLINE).unwrap().contains("second of 2 bytes"));
    let record = group.flight_recorder().record();
    assert!(record.operations.iter().all(|op| op.started.is_some() && op.ended.is_none()), "{record:?}");
}
