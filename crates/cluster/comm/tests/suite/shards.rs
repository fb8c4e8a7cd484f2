//! The same number of shards gives the same bits on any number of ranks, over every transport.

use crate::cases::{Shards, sums_of, sums_over_shards};
use crate::common::{TRANSPORTS, groups, kept_groups, run_all, run_ranks, transports};
use enmasse_comm::{CauseKind, Group};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn ranks_change_no_bit(shards in 1usize..=9, ranks in 1usize..=5, len in 0usize..5000, gap in 0usize..40, seed: u64) {
        prop_assume!(ranks <= shards);
        let case = Shards { shards, len, gap, seed };
        for transport in transports(ranks) {
            run_ranks(kept_groups(ranks, transport), move |group| sums_over_shards(&group, case));
        }
    }
}

#[test]
fn ranks_change_no_bit_through_many_rounds() {
    // One partial sum per rank, and up to three: several rounds of both transports.
    let cases = if test_support::time() { &[(4, 2), (6, 2), (16, 3), (9, 4)][..] } else { &[(4, 2), (16, 3)] };
    for &(shards, ranks) in cases {
        let case = Shards { shards, len: 600_001, gap: 3, seed: 7 };
        for transport in transports(ranks) {
            run_ranks(kept_groups(ranks, transport), move |group| {
                sums_of(&group, case, |x| x as f32, |x| x.to_bits().into());
            });
        }
    }
}

#[test]
fn one_shard_on_each_rank_is_a_sum_over_ranks() {
    for transport in TRANSPORTS {
        // Calls of the two functions agree with each other.
        let sums = run_ranks(groups(3, transport), |group| {
            let mut values = [group.rank() as f32 + 0.5; 9];
            match group.rank() {
                0 => group.all_reduce_shards(&mut values, 9, 9, 3).map(|()| values),
                _ => group.all_reduce(&mut values).map(|()| values),
            }
        });
        assert_eq!(sums, [Ok([4.5; 9]), Ok([4.5; 9]), Ok([4.5; 9])]);
    }
}

#[test]
fn ranks_with_different_shard_counts_are_told() {
    for transport in TRANSPORTS {
        let causes = run_ranks(groups(2, transport), |group| {
            let mut values = [0f32; 8];
            group.all_reduce_shards(&mut values, 4, 4, 2 + 2 * group.rank()).unwrap_err()
        });
        for cause in causes {
            let expected = "rank 0 runs all_reduce(sum) of 4 f32 #1 (over 2 shards) while rank 1 runs \
                            all_reduce(sum) of 4 f32 #1 (over 4 shards)";
            assert_eq!(cause.kind, CauseKind::Desync);
            assert!(cause.message.contains(expected), "{cause}");
        }
    }
}

#[test]
fn invalid_calls_end_the_group() {
    let check = |ranks: usize, [elements, len, stride, shards]: [usize; 4], expected: &'static str| {
        let groups = match ranks {
            1 => vec![Group::single()],
            _ => Group::threads(ranks).unwrap(),
        };
        run_all(groups, move |group| {
            let mut values = vec![0f32; elements];
            let cause = group.all_reduce_shards(&mut values, len, stride, shards).unwrap_err();
            assert!(cause.to_string().contains(expected), "{cause}");
            // SAFETY: the group has failed, so nothing is read or written.
            let started = unsafe { group.all_reduce_shards_start(values.as_mut_ptr(), len, stride, shards) };
            assert_eq!(started.wait(), Err(cause));
        });
    };
    check(1, [4, 4, 4, 0], "0 shards cannot be divided among 1 ranks");
    check(2, [4, 4, 4, 1], "1 shards cannot be divided among 2 ranks: every rank hosts at least one");
    check(2, [8, 4, 3, 6], "partial sums of 4 elements overlap where one begins every 3 elements");
    check(2, [8, 4, 5, 6], "8 elements do not hold 2 partial sums of 4, one every 5 elements");
    check(2, [8, 4, usize::MAX, 6], "8 elements do not hold 2 partial sums");
}
