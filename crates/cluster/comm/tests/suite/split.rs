//! Groups split from others: their members, their results, and how they end with the whole job.

use std::time::Duration;

use crate::cases::{groups_of_groups, two_groups_at_once, value};
use crate::common::{DEADLINE, TRANSPORTS, groups, join_all, rendezvous, run_ranks};
use enmasse_comm::{Cause, CauseKind, Group, GroupOptions, TransportChoice, tree_fold};

#[test]
fn colours_form_groups_over_every_transport() {
    for transport in TRANSPORTS {
        let results = run_ranks(groups(5, transport), move |group| {
            // Ranks 0 and 3 in reverse order, 1 and 4 in order, 2 in no group.
            let rank = group.rank();
            let colour = (rank != 2).then_some(rank as u32 % 3);
            let key = if rank % 3 == 0 { -(rank as i64) } else { 7 };
            let part = group.split(colour, key).unwrap();
            // The parent may be dropped first.
            group.barrier().unwrap();
            drop(group);
            part.map(|part| {
                let mut gathered = vec![0; part.world_size()];
                part.all_gather(&[rank as i64], &mut gathered).unwrap();
                let mut sum: Vec<f32> = (0..100_000).map(|i| value(1, rank, i) as f32).collect();
                part.all_reduce(&mut sum).unwrap();
                let right = sum.iter().enumerate().all(|(i, x)| {
                    let of = |member: usize| value(1, gathered[member] as usize, i) as f32;
                    x.to_bits() == tree_fold(gathered.len(), &mut { of }, &mut |a, b| a + b).unwrap().to_bits()
                });
                assert!(right, "{transport}: other bits");
                (part.rank(), gathered, format!("{part:?}"))
            })
        });
        let expected = |rank: usize, members: [i64; 2], group: usize| {
            Some((rank, members.to_vec(), format!("Group(rank {rank} of 2 of group {group})")))
        };
        assert_eq!(
            results,
            [expected(1, [3, 0], 1), expected(0, [1, 4], 2), None, expected(0, [3, 0], 1), expected(1, [1, 4], 2)],
            "{transport}"
        );
    }
}

#[test]
fn groups_of_one_and_no_group() {
    for transport in TRANSPORTS {
        let results = run_ranks(groups(2, transport), |group| {
            assert!(group.split(None, 0).unwrap().is_none());
            let alone = group.split(Some(group.rank() as u32), 0).unwrap().unwrap();
            let mut value = [group.rank() as i32];
            alone.all_reduce(&mut value).unwrap();
            (alone.rank(), alone.world_size(), alone.job_rank(0), value)
        });
        assert_eq!(results, [(0, 1, 0, [0]), (0, 1, 1, [1])], "{transport}");
    }
    let single = Group::single().split(Some(3), 0).unwrap().unwrap();
    assert_eq!(format!("{single:?}"), "Group(rank 0 of 1 of group 1)");
}

#[test]
fn groups_of_groups_are_numbered_by_their_path() {
    for transport in TRANSPORTS {
        run_ranks(groups(4, transport), |group| groups_of_groups(&group));
    }
}

#[test]
fn neither_group_waits_for_the_other() {
    for transport in TRANSPORTS {
        run_ranks(groups(3, transport), |group| two_groups_at_once(&group));
    }
}

/// Regression test: joining and splitting added such a time to the clock's, and panicked.
#[test]
fn ranks_may_wait_for_ever() {
    let mut ranks = rendezvous(2, TransportChoice::Auto);
    for rank in &mut ranks {
        rank.join_timeout = Duration::MAX;
        rank.options = GroupOptions { timeout: Duration::MAX, ..GroupOptions::default() };
    }
    let groups = join_all(ranks).into_iter().map(Result::unwrap).collect();
    run_ranks(groups, |group| group.split(Some(0), 0).unwrap().unwrap().barrier().unwrap());
}

#[test]
fn operations_of_both_are_recorded() {
    let records = run_ranks(groups(2, "threads"), |group| {
        group.barrier().unwrap();
        let part = group.split(Some(0), 0).unwrap().unwrap();
        part.all_reduce(&mut [0f32; 3]).unwrap();
        part.barrier().unwrap();
        group.barrier().unwrap();
        let operations = part.flight_recorder().record().operations;
        operations.into_iter().rev().take(3).map(|op| format!("{} #{}", op.operation, op.sequence)).collect::<Vec<_>>()
    });
    for record in records {
        assert!(record[0].starts_with("barrier #") && record[0] != "barrier #2", "{record:?}");
        assert_eq!(record[1..], ["barrier in group 1 #2", "all_reduce(sum) of 3 f32 in group 1 #1"]);
    }
}

/// Four ranks, of which 1 and 3 form a group in reverse order: the cause that every rank reports.
fn check_failure(
    transport: &str,
    body: impl Fn(&Group, Option<&Group>) + Clone + Send + 'static,
    check: impl Fn(&Cause),
) {
    let causes = run_ranks(groups(4, transport), move |group| {
        let part = match group.split((group.rank() % 2 == 1).then_some(5), -(group.rank() as i64)) {
            Ok(part) => part,
            // A rank may still be leaving the split when another one fails.
            Err(cause) => return cause,
        };
        body(&group, part.as_ref());
        // The parent fails along with the part.
        let cause = group.barrier().unwrap_err();
        assert_eq!(part.map_or(cause.clone(), |part| part.barrier().unwrap_err()), cause);
        cause
    });
    for cause in &causes {
        check(cause);
        assert_eq!(cause, &causes[0], "ranks tell different stories");
    }
}

#[test]
fn causes_name_the_group_and_ranks_of_the_job() {
    for transport in TRANSPORTS {
        check_failure(
            transport,
            |_, part| {
                if let Some(part) = part {
                    part.barrier().unwrap();
                    part.all_reduce(&mut vec![0f32; 9 + part.rank()]).unwrap_err();
                }
            },
            |cause| {
                assert_eq!((cause.kind, cause.rank), (CauseKind::Desync, Some(1)), "{cause}");
                let expected = "rank 3 runs all_reduce(sum) of 9 f32 in group 1 #2 while rank 1 runs \
                                all_reduce(sum) of 10 f32 in group 1 #2";
                assert!(cause.message.starts_with(expected), "{cause}");
            },
        );
        check_failure(
            transport,
            |_, part| {
                if let Some(part) = part {
                    let text = if part.rank() == 0 { "a" } else { "b" };
                    part.compare(&[("plan", &text)]).unwrap_err();
                }
            },
            |cause| assert!(cause.message.contains("is \"a\" on rank 3 and \"b\" on rank 1"), "{cause}"),
        );
        check_failure(
            transport,
            |_, part| {
                if let Some(part) = part {
                    part.broadcast(&mut [0u8; 4], 2).unwrap_err();
                }
            },
            |cause| {
                assert!(matches!(cause.rank, Some(1 | 3)), "{cause}");
                assert_eq!(cause.operation, "broadcast of 4 u8 from rank 2 in group 1");
            },
        );
    }
}

#[test]
fn a_rank_outside_ends_the_group_too() {
    for transport in TRANSPORTS {
        check_failure(
            transport,
            |group, part| match part {
                Some(part) => while part.barrier().is_ok() {},
                None if group.rank() == 2 => group.abort(group.own_cause(CauseKind::NonFinite, "loss of step 9")),
                None => {}
            },
            |cause| assert_eq!((cause.rank, &*cause.message), (Some(2), "loss of step 9")),
        );
    }
}

#[test]
fn a_late_rank_of_a_group_is_named_by_its_job_rank() {
    let timeout = Duration::from_secs(5);
    let options = GroupOptions { timeout, ..GroupOptions::default() };
    let causes = run_ranks(Group::threads_with(3, options).unwrap(), move |group| {
        let part = group.split((group.rank() > 0).then_some(0), 0).unwrap();
        match part {
            Some(part) if part.rank() == 0 => part.barrier().unwrap_err(),
            _ => {
                let (failed, heard) = std::sync::mpsc::channel();
                group.observe(move |_| {
                    // The rank itself may be gone.
                    let _ = failed.send(());
                });
                heard.recv_timeout(DEADLINE).unwrap();
                group.cause().unwrap()
            }
        }
    });
    for cause in causes {
        assert_eq!((cause.kind, cause.rank), (CauseKind::Timeout, Some(2)));
        assert_eq!((cause.operation.as_str(), cause.sequence), ("barrier in group 1", 1));
    }
}
