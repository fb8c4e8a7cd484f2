//! The same bits over every transport: threads, shared memory, TCP, and nodes that use both, against a plain model.

use crate::cases::{copies, same_bits};
use crate::common::{groups, kept_groups, run_ranks, transports};
use enmasse_comm::Reduction;
use proptest::prelude::*;

fn check(ranks: usize, transport: &'static str, seed: u64, len: usize, reduction: Reduction) {
    run_ranks(kept_groups(ranks, transport), move |group| same_bits(&group, seed, len, reduction));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn the_same_bits_everywhere(ranks in 2usize..=5, seed: u64, len in 0usize..5000, odd in 0usize..4) {
        let reduction = [Reduction::Sum, Reduction::Product, Reduction::Max, Reduction::Min][odd];
        for transport in transports(ranks) {
            check(ranks, transport, seed, len, reduction);
        }
    }
}

#[test]
fn the_same_bits_through_many_rounds() {
    let worlds = if test_support::time() { &[2, 3, 4, 5][..] } else { &[2, 5] };
    for &ranks in worlds {
        for transport in transports(ranks) {
            check(ranks, transport, 7, 600_001, Reduction::Sum);
        }
    }
}

#[test]
fn copies_over_every_transport() {
    for ranks in 2..=4 {
        for transport in transports(ranks) {
            for len in [0, 1, 100_000, 1_100_001] {
                run_ranks(groups(ranks, transport), move |group| copies(&group, len));
            }
        }
    }
}
