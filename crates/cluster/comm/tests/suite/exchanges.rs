//! Gather, scatter, all-to-all, pairs and owned memory, over every transport; and how they fail.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::cases::exchanges::{between_two, of_every_type};
use crate::common::{DEADLINE, groups, kept_groups, run_ranks, transports};
use enmasse_comm::{Cause, CauseKind, Group, GroupOptions, Reduction};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn ranks_get_what_is_theirs_everywhere(ranks in 1usize..=5, seed: u64, len in 0usize..700, root in 0usize..5) {
        let root = root % ranks;
        for transport in if ranks == 1 { &["threads"][..] } else { transports(ranks) } {
            run_ranks(kept_groups(ranks, transport), move |group| of_every_type(&group, seed, len, root));
        }
    }
}

#[test]
fn exchanges_of_many_chunks() {
    for ranks in [2, 3, 5] {
        for transport in transports(ranks) {
            for len in [65_535, 150_001] {
                run_ranks(groups(ranks, transport), move |group| {
                    let (rank, ranks) = (group.rank(), group.world_size());
                    let of = |sender: usize, receiver: usize, i: usize| (i * 31 + sender * 7 + receiver) as i32;
                    let part = |sender, receiver| (0..len).map(move |i| of(sender, receiver, i));
                    let own: Vec<i32> = (0..ranks).flat_map(|receiver| part(rank, receiver)).collect();
                    let mut found = vec![0; own.len()];
                    group.all_to_all(&own, &mut found).unwrap();
                    assert!(found.iter().copied().eq((0..ranks).flat_map(|sender| part(sender, rank))));
                    group.gather(&own[..len], &mut found, ranks - 1).unwrap();
                    if rank == ranks - 1 {
                        assert!(found.iter().copied().eq((0..ranks).flat_map(|sender| part(sender, 0))));
                    }
                    group.scatter(&own, &mut found[..len], 1).unwrap();
                    assert!(found[..len].iter().copied().eq(part(1, rank)));
                });
            }
        }
    }
}

#[test]
fn pairs_over_every_transport() {
    for ranks in 2..=4 {
        for transport in transports(ranks) {
            for len in [0, 1, 300_001] {
                run_ranks(groups(ranks, transport), move |group| between_two(&group, len));
            }
        }
    }
}

/// A handle that is dropped waits, and one that is forgotten frees nothing that is in use.
#[test]
fn owned_memory_outlives_its_handle() {
    run_ranks(Group::threads(2).unwrap(), |group| {
        drop(group.all_reduce_owned(vec![1f32; 100_000], Reduction::Sum));
        std::mem::forget(group.all_to_all_owned(vec![1u8; 100_000]));
        let pending = group.all_gather_owned(vec![group.rank() as i32; 3]);
        group.barrier().unwrap();
        assert!(pending.is_done());
        // The communication thread carries out what was started before the group ends.
        drop(group);
        assert_eq!(pending.wait().unwrap(), [0, 0, 0, 1, 1, 1]);
    });
}

/// All ranks report one cause.
fn check(
    ranks: usize,
    transport: &str,
    body: impl Fn(&Group) -> Result<(), Arc<Cause>> + Clone + Send + 'static,
    expected: &str,
) {
    let texts = run_ranks(groups(ranks, transport), move |group| body(&group).unwrap_err().to_string());
    for text in &texts {
        assert_eq!(text, &texts[0], "ranks tell different stories over {transport}");
        assert!(text.contains(expected), "{text:?} lacks {expected:?}");
    }
}

#[test]
fn mismatches_name_both_ranks() {
    for transport in ["threads", "shared", "tcp"] {
        check(
            3,
            transport,
            |group| group.all_to_all(&vec![0i32; 3 + 3 * (group.rank() / 2)], &mut vec![0; 3 + 3 * (group.rank() / 2)]),
            "rank 0 runs all_to_all of 1 i32 #1 while rank 2 runs all_to_all of 2 i32 #1",
        );
        check(
            2,
            transport,
            |group| match group.rank() {
                0 => group.gather(&[1u8; 4], &mut [0; 8], 0),
                _ => group.scatter(&[1u8; 8], &mut [0; 4], 1),
            },
            "rank 0 runs gather of 4 u8 to rank 0 #1 while rank 1 runs scatter of 4 u8 from rank 1 #1",
        );
        check(
            2,
            transport,
            |group| match group.rank() {
                0 => group.gather(&[1f32; 4], &mut [0.0; 8], 0),
                _ => group.gather(&[1f64; 4], &mut [], 0),
            },
            "rank 0 runs gather of 4 f32 to rank 0 #1 while rank 1 runs gather of 4 f64 to rank 0 #1",
        );
        check(
            2,
            transport,
            |group| group.pair(0, 1)?.expect("both are members").send(&[1f32; 4]),
            "rank 0 runs transfer of 4 f32 from rank 0 in group 1 #1 while rank 1 runs transfer of 4 f32 from rank 1",
        );
        check(
            2,
            transport,
            |group| {
                let reduction = if group.rank() == 0 { Reduction::Product } else { Reduction::Sum };
                group.all_reduce_owned(vec![0i32; 4], reduction).wait().map(drop)
            },
            "rank 0 runs all_reduce(product) of 4 i32 #1 while rank 1 runs all_reduce(sum) of 4 i32 #1",
        );
    }
}

#[test]
fn invalid_calls_are_named() {
    let check = |body: fn(&Group) -> Result<(), Arc<Cause>>, expected| check(2, "threads", body, expected);
    check(
        |group| group.gather(&[1u8; 4], &mut [0; 7], group.rank()),
        "the output has 7 elements: 4 for each of 2 ranks",
    );
    check(
        |group| group.scatter(&[1u8; 7], &mut [0; 4], group.rank()),
        "the input has 7 elements: 4 for each of 2 ranks",
    );
    check(|group| group.all_to_all(&[1u8; 7], &mut [0; 7]), "the input has 7 elements: 3 for each of 2 ranks");
    check(|group| group.all_to_all(&[1u8; 8], &mut [0; 7]), "the output has 7 elements: 4 for each of 2 ranks");
    check(|group| group.scatter_owned(vec![1u8; 8], 4, 2).wait().map(drop), "there is no rank 2: use 0 to 1");
    check(|group| group.pair(1, 1).map(drop), "ranks 1 and 1 are no pair of 2 ranks");
    check(|group| group.pair(0, 2).map(drop), "ranks 0 and 2 are no pair of 2 ranks");
}

/// A rank that leaves is named by those that wait for it.
#[test]
fn a_rank_that_leaves_ends_an_exchange() {
    for transport in ["threads", "shared", "tcp", "pairs"] {
        // A rank that is still leaving the barrier would fail there: the group fails as a whole.
        let passed = Arc::new(std::sync::Barrier::new(3));
        let texts = run_ranks(groups(3, transport), move |group| {
            group.barrier().unwrap();
            passed.wait();
            let own = [1f32; 3];
            (group.rank() != 1).then(|| group.all_to_all(&own, &mut [0.0; 3]).unwrap_err().to_string())
        });
        for text in texts.into_iter().flatten() {
            assert!(text.starts_with("rank 1 on host ") && text.contains("during all_to_all of 1 f32 #2"), "{text}");
        }
    }
}

/// A rank that joins too late is named after the deadline; so is one that never receives.
#[test]
fn a_late_rank_ends_an_exchange() {
    let options = GroupOptions {
        timeout: Duration::from_secs(3),
        stall_warning: Duration::from_secs(2),
        ..GroupOptions::default()
    };
    let late = |operation: &'static str, body: fn(&Group) -> Result<(), Arc<Cause>>| {
        run_ranks(Group::threads_with(2, options).unwrap(), move |group| {
            let (told, failed) = channel();
            group.observe(move |_| {
                // The rank itself may be gone.
                let _ = told.send(());
            });
            let cause = match group.rank() {
                0 => body(&group).unwrap_err(),
                _ => {
                    // The late rank does something else until the group has failed.
                    while group.cause().is_none() {
                        failed.recv_timeout(DEADLINE).unwrap();
                    }
                    group.cause().unwrap()
                }
            };
            assert_eq!((cause.kind, cause.rank), (CauseKind::Timeout, Some(1)), "{cause}");
            assert_eq!(cause.operation, operation);
        });
    };
    late("scatter of 2 i64 from rank 0", |group| group.scatter(&[1i64; 4], &mut [0; 2], 0));
    late("gather of 2 i64 to rank 1", |group| group.gather_owned(vec![1i64; 2], 1).wait().map(drop));
}
