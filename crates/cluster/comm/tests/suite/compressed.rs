//! Sums that cross between nodes in 16 bits, over every transport: their bits, what they send, and what error feedback is for.

use enmasse_comm::{CauseKind, Compression, Group};
use proptest::prelude::*;

use crate::cases::compressed::{same_bits, shards};
use crate::common::{groups, kept_groups, nodes, run_ranks, transports};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn sums_have_the_bits_of_the_model(ranks in 2usize..=5, seed: u64, len in 0usize..1500, odd in 0usize..2) {
        for transport in transports(ranks) {
            let nodes = nodes(ranks, transport);
            let to = Compression::ALL[odd];
            run_ranks(kept_groups(ranks, transport), move |group| same_bits(&group, to, &nodes, seed, len));
        }
    }
}

#[test]
fn sums_through_many_chunks() {
    for (ranks, transport) in [(2, "tcp"), (3, "tcp"), (5, "pairs"), (5, "one, one, rest")] {
        let nodes = nodes(ranks, transport);
        run_ranks(kept_groups(ranks, transport), move |group| same_bits(&group, Compression::Bf16, &nodes, 7, 700_001));
    }
}

#[test]
fn a_rank_adds_up_its_own_shards_first() {
    for (transport, to) in ["threads", "tcp", "cyclic"].into_iter().flat_map(|t| Compression::ALL.map(|to| (t, to))) {
        run_ranks(kept_groups(3, transport), move |group| shards(&group, to, 1000));
    }
}

#[test]
fn half_the_bytes_travel() {
    // Beside the values: headers and tags.
    let beside = 4096;
    for (ranks, len) in [(2, 1 << 20), (3, 1 << 20)] {
        run_ranks(groups(ranks, "tcp"), move |group| {
            let (mut data, mut residual) = (vec![1f32; len], vec![0.0; len]);
            let mut bytes = |to: Option<Compression>| {
                let before = group.traffic();
                match to {
                    Some(to) => group.all_reduce_compressed(&mut data, to, &mut residual).unwrap(),
                    None => group.all_reduce(&mut data).unwrap(),
                }
                group.traffic() - before
            };
            let whole = bytes(None);
            for to in Compression::ALL {
                let half = bytes(Some(to));
                for (half, whole) in [(half.sent, whole.sent), (half.received, whole.received)] {
                    assert!((whole / 2 - beside..whole / 2 + beside).contains(&half), "{to}: {half} of {whole}");
                }
            }
        });
    }
}

/// Sums of a large gradient of one rank and a small one of another, with and without what was kept.
fn summed(group: &Group, to: Compression, keeps: bool) -> f64 {
    let mut residual = [0.0; 9];
    let mut total = 0.0;
    for _ in 0..1000 {
        let mut data = [if group.rank() == 0 { 1.0 } else { 1e-5 }; 9];
        group.all_reduce_compressed(&mut data, to, &mut residual).unwrap();
        if !keeps {
            residual.fill(0.0);
        }
        total += f64::from(data[0]);
    }
    total
}

#[test]
fn error_feedback_keeps_a_small_gradient_that_rounding_loses() {
    for to in Compression::ALL {
        let totals = run_ranks(groups(2, "tcp"), move |group| [false, true].map(|keeps| summed(&group, to, keeps)));
        for [without, with] in totals {
            assert_eq!(without, 1000.0, "{to}");
            assert!((with - 1000.01).abs() < 0.005, "{to}: {with}");
        }
    }
}

#[test]
fn where_all_ranks_share_memory_nothing_is_rounded() {
    for transport in ["threads", "shared"] {
        run_ranks(groups(2, transport), |group| {
            assert!(group.shares_memory());
            let (mut data, mut residual) = ([0.1f32; 100], [0.0; 100]);
            group.all_reduce_compressed(&mut data, Compression::F16, &mut residual).unwrap();
            assert_eq!((data, residual), ([0.2; 100], [0.0; 100]));
        });
    }
    run_ranks(groups(3, "cyclic"), |group| assert!(!group.shares_memory()));
}

#[test]
fn what_f16_cannot_hold_is_infinite_on_every_rank() {
    run_ranks(groups(2, "tcp"), |group| {
        let mut data = [40_000.0f32, 1.0];
        let mut residual = [0.0; 2];
        group.all_reduce_compressed(&mut data, Compression::F16, &mut residual).unwrap();
        assert_eq!(data, [f32::INFINITY, 2.0]);
        let mut data = [40_000.0f32, 1.0];
        group.all_reduce_compressed(&mut data, Compression::Bf16, &mut [0.0; 2]).unwrap();
        assert!((data[0] - 80_000.0).abs() < 400.0, "{data:?}");
    });
}

#[test]
fn ranks_that_differ_are_told() {
    for transport in ["threads", "tcp"] {
        let causes = run_ranks(groups(2, transport), |group| {
            let mut data = [1f32; 10];
            match group.rank() {
                0 => group.all_reduce(&mut data),
                _ => group.all_reduce_compressed(&mut data, Compression::Bf16, &mut [0.0; 10]),
            }
            .unwrap_err()
        });
        for cause in causes {
            let expected =
                "rank 0 runs all_reduce(sum) of 10 f32 #1 while rank 1 runs all_reduce(sum) of 10 f32 in bf16 #1";
            assert!(cause.kind == CauseKind::Desync && cause.message.contains(expected), "{transport}: {cause}");
        }
    }
    let cause = Group::single().all_reduce_compressed(&mut [1.0; 3], Compression::Bf16, &mut [0.0; 2]).unwrap_err();
    assert!(cause.message.contains("the residual has 2 elements, and the data 3"), "{cause}");
}
