//! All-reduces by every algorithm over every transport, against plain models; and what ends them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use crate::cases::algorithms::{other_reductions, same_bits, same_bits_of_f32, shards};
use crate::common::{groups, groups_by, join_all, nodes, rendezvous_over, run_ranks, transports};
use enmasse_comm::{Algorithm, AlgorithmChoice, Cause, CauseKind, Group, GroupOptions};
use proptest::prelude::*;

/// Groups whose ranks are all connected, made once.
fn connected(ranks: usize, transport: &'static str) -> Vec<Group> {
    thread_local! {
        static GROUPS: RefCell<HashMap<(usize, &'static str), Vec<Group>>> = RefCell::default();
    }
    let make = || if ranks == 1 { vec![Group::single()] } else { groups_by(ranks, transport, Algorithm::Direct) };
    GROUPS.with_borrow_mut(|all| all.entry((ranks, transport)).or_insert_with(make).clone())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn sums_have_the_bits_of_the_algorithms_order(ranks in 1usize..=9, seed: u64, len in 0usize..1500, odd in 0usize..5) {
        for transport in transports(ranks) {
            let nodes = nodes(ranks, transport);
            let algorithm = Algorithm::ALL[odd];
            run_ranks(connected(ranks, transport), move |group| same_bits(&group, algorithm, &nodes, seed, len));
        }
    }
}

#[test]
fn sums_through_many_chunks() {
    for ranks in [3, 4] {
        // Several chunks of a round, even in pieces of pieces.
        for (transport, algorithm) in
            ["threads", "tcp", "pairs"].into_iter().flat_map(|t| others().map(move |a| (t, a)))
        {
            let nodes = nodes(ranks, transport);
            run_ranks(connected(ranks, transport), move |group| same_bits_of_f32(&group, algorithm, &nodes, 800_001));
        }
    }
}

#[test]
fn a_groups_own_algorithm_is_that_of_all_its_all_reduces() {
    for (transport, algorithm) in
        ["threads", "shared", "tcp", "cyclic"].into_iter().flat_map(|t| Algorithm::ALL.map(|a| (t, a)))
    {
        let nodes = nodes(3, transport);
        run_ranks(groups_by(3, transport, algorithm), move |group| {
            other_reductions(&group, algorithm, &nodes, 1000);
            if algorithm != Algorithm::Tree {
                // Two partial sums on each rank.
                shards(&group, algorithm, &nodes, 7, 333, 5);
            }
            // Of the other operations the tree remains.
            let mut pieces = [0.1f32 + group.rank() as f32; 100];
            group.reduce_scatter(&mut pieces).unwrap();
            let own = group.piece::<f32>(group.rank(), 100);
            assert!(pieces[own].iter().all(|&sum| sum == (0.1 + 1.1) + 2.1));
            // So do those of groups that are split from it.
            let part = group.split(Some(0), -(group.rank() as i64)).unwrap().unwrap();
            let mut sum = [1.0f32; 100];
            part.all_reduce(&mut sum).unwrap();
            assert_eq!(sum, [3.0; 100]);
        });
    }
}

#[test]
fn a_choice_by_the_model_has_the_bits_of_what_is_chosen() {
    // "cyclic" has two nodes, to which ranks are dealt one after another.
    for (transport, ranks, bytes, expected) in [
        ("threads", 4, 1 << 20, Algorithm::Tree),
        ("tcp", 3, 1 << 20, Algorithm::Tree),
        ("cyclic", 4, 4 << 10, Algorithm::Tree),
        ("cyclic", 4, 1 << 20, Algorithm::Hierarchical),
    ] {
        let nodes = nodes(ranks, transport);
        run_ranks(groups_by(ranks, transport, AlgorithmChoice::Auto), move |group| {
            assert_eq!(group.algorithm_choice(), AlgorithmChoice::Auto);
            assert_eq!(group.all_reduce_algorithm(), Algorithm::Tree, "nothing is chosen yet");
            let chosen = group.choose_algorithm(bytes);
            assert_eq!(chosen, expected, "{transport} {bytes}");
            let by_choice = group.summing_by(chosen);
            assert_eq!(by_choice.all_reduce_algorithm(), chosen);
            other_reductions(&by_choice, chosen, &nodes, 1000);
            // The group is connected for whatever may be chosen.
            for algorithm in others().filter(|algorithm| *algorithm != Algorithm::Direct) {
                same_bits(&group, algorithm, &nodes, 3, 1000);
            }
        });
    }
}

#[test]
fn ranks_that_sum_by_different_algorithms_are_told() {
    for transport in transports(4) {
        let causes = run_ranks(groups_by(4, transport, Algorithm::Direct), |group| {
            let algorithm = if group.rank() == 3 { Algorithm::Direct } else { Algorithm::Ring };
            group.all_reduce_by(&mut [1f32; 100], algorithm).unwrap_err()
        });
        for cause in causes {
            let expected = "rank 0 runs all_reduce(sum) of 100 f32 by ring #1 while rank 3 runs \
                            all_reduce(sum) of 100 f32 by direct #1";
            assert_eq!(cause.kind, CauseKind::Desync);
            assert!(cause.message.contains(expected), "{transport}: {cause}");
        }
    }
}

#[test]
fn groups_of_ranks_with_different_algorithms_do_not_form() {
    let halving = (Algorithm::HalvingDoubling.into(), "halving-doubling");
    for (transport, (choice, name)) in
        [("shared", halving), ("tcp", halving), ("cyclic", (AlgorithmChoice::Auto, "auto"))]
    {
        let mut ranks = rendezvous_over(4, transport);
        ranks[2].options.all_reduce = choice;
        for error in join_all(ranks) {
            let error = error.unwrap_err().to_string();
            let expected = format!("the algorithm of all-reduces is tree on rank 0 and {name} on rank 2");
            assert!(error.contains(&expected), "{transport}: {error}");
        }
    }
}

#[test]
fn ranks_that_are_connected_for_the_tree_alone_say_so() {
    let causes =
        run_ranks(groups(4, "pairs"), |group| group.all_reduce_by(&mut [1f32; 9], Algorithm::Ring).unwrap_err());
    for cause in causes {
        assert!(cause.message.contains("connected for tree alone, not for ring"), "{cause}");
    }
}

fn others() -> impl Iterator<Item = Algorithm> {
    Algorithm::ALL.into_iter().filter(|algorithm| *algorithm != Algorithm::Tree)
}

#[test]
fn a_rank_that_leaves_ends_all() {
    for (transport, algorithm) in
        ["threads", "shared", "tcp", "cyclic"].into_iter().flat_map(|t| others().map(move |a| (t, a)))
    {
        let causes: Vec<Option<Cause>> = run_ranks(groups_by(4, transport, algorithm), |group| {
            let mut data = vec![1f32; 500_000];
            if group.rank() == 2 {
                group.all_reduce(&mut data).unwrap();
                return None;
            }
            // A rank may still be in the first sum when another one misses rank 2 in the second.
            loop {
                if let Err(cause) = group.all_reduce(&mut data) {
                    break Some((*cause).clone());
                }
            }
        });
        for (rank, cause) in causes.into_iter().enumerate().filter(|(rank, _)| *rank != 2) {
            let cause = cause.unwrap();
            assert_eq!(
                (cause.kind, cause.rank),
                (CauseKind::Exited, Some(2)),
                "rank {rank}, {transport} {algorithm}: {cause}"
            );
        }
    }
}

#[test]
fn a_failure_in_the_middle_ends_all_with_its_cause() {
    for (transport, algorithm) in
        ["threads", "shared", "tcp", "cyclic"].into_iter().flat_map(|t| others().map(move |a| (t, a)))
    {
        let causes = run_ranks(groups_by(4, transport, algorithm), move |group| {
            let failing = group.clone();
            let started = std::sync::mpsc::channel();
            // Ends once the sums are under way.
            let failure = std::thread::spawn(move || {
                if started.1.recv().is_ok() && failing.rank() == 1 {
                    failing.abort(failing.own_cause(CauseKind::Error, "a disk is full"));
                }
            });
            let mut data = vec![1f32; 500_000];
            let cause = loop {
                // Nobody hears it after the first sum.
                let _ = started.0.send(());
                match group.all_reduce(&mut data) {
                    Ok(()) => {}
                    Err(cause) => break cause,
                }
            };
            failure.join().unwrap();
            cause
        });
        for cause in causes {
            assert_eq!((cause.rank, &*cause.message), (Some(1), "a disk is full"), "{transport} {algorithm}: {cause}");
        }
    }
}

#[test]
fn a_rank_that_comes_too_late_is_named() {
    for (transport, algorithm) in ["threads", "tcp", "cyclic"].into_iter().flat_map(|t| others().map(move |a| (t, a))) {
        let timeout = Duration::from_secs(2);
        let options = GroupOptions { all_reduce: algorithm.into(), timeout, ..GroupOptions::default() };
        let groups = match transport {
            "threads" => Group::threads_with(3, options).unwrap(),
            _ => {
                let mut ranks = rendezvous_over(3, transport);
                ranks.iter_mut().for_each(|rank| rank.options = options);
                join_all(ranks).into_iter().map(Result::unwrap).collect()
            }
        };
        let causes = run_ranks(groups, |group| match group.rank() {
            1 => loop {
                if let Some(cause) = group.cause() {
                    break cause;
                }
                std::thread::yield_now();
            },
            _ => group.all_reduce(&mut [1f32; 1000]).unwrap_err(),
        });
        for cause in causes {
            assert_eq!((cause.kind, cause.rank), (CauseKind::Timeout, Some(1)), "{transport} {algorithm}: {cause}");
            assert!(cause.message.contains("it had not joined the operation"), "{cause}");
        }
    }
}

#[test]
fn bytes_are_counted() {
    // Bytes of a sum of 16 KiB in pieces of 4 KiB, sent and received by each rank, beside headers and tags.
    for (transport, beside) in [("threads", 0), ("tcp", 600)] {
        let algorithms = [Algorithm::Ring, Algorithm::HalvingDoubling, Algorithm::Direct, Algorithm::Tree];
        run_ranks(groups(4, transport), move |group| {
            for algorithm in algorithms {
                let before = group.traffic();
                group.all_reduce_by(&mut [1f32; 4096], algorithm).unwrap();
                let found = group.traffic() - before;
                // What a rank writes for all to read, it writes once.
                let sent = if (transport, algorithm) == ("threads", Algorithm::Tree) { 16 } else { 24 };
                for (bytes, expected) in [(found.sent, sent << 10), (found.received, 24 << 10)] {
                    assert!((expected..=expected + beside).contains(&bytes), "{transport} {algorithm}: {found:?}");
                }
            }
        });
    }
}
