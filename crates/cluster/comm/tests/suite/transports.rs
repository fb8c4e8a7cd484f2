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

/// It took a broadcast from each rank, one after another, so groups of hundreds compared for minutes what their ranks are.
#[test]
fn bytes_of_all_ranks_travel_in_two_operations() {
    for ranks in [2, 7] {
        run_ranks(groups(ranks, "tcp"), move |group| {
            let before = group.traffic();
            let gathered = group.all_gather_bytes(&[group.rank() as u8; 3]).unwrap();
            assert!(gathered.iter().enumerate().all(|(rank, bytes)| *bytes == [rank as u8; 3]), "{gathered:?}");
            // An operation sends each other rank a header of 80 bytes and a tag or two.
            let sent = (group.traffic() - before).sent as usize / (ranks - 1);
            assert!(sent < 3 * 112, "{sent} bytes to each of {ranks} ranks");
        });
    }
}
