//! The same number of shards gives the same bits on any number of ranks, over every transport.

use crate::common::{TRANSPORTS, groups, kept_groups, run_all, run_ranks, transports, value};
use enmasse_comm::{CauseKind, Element, Fold, Group, ShardMap, tree_fold};
use enmasse_tensor::Bf16;
use proptest::prelude::*;

/// How the shards of a case are hosted, and their values.
#[derive(Clone, Copy, Debug)]
struct Case {
    shards: usize,
    ranks: usize,
    len: usize,
    /// Elements between one slot and the next.
    gap: usize,
    seed: u64,
}

/// The operations that the ranks use to sum.
#[derive(Clone, Copy, Debug)]
enum How {
    Blocking,
    Started,
    /// Each rank its piece, and then all pieces.
    InPieces,
    /// The last rank everything, and then all others.
    ByOne,
}

/// The result on a rank that processes its shards in the order of the schedule.
fn sum<T: Element>(group: &Group, case: Case, element: fn(f64) -> T, how: How) -> Vec<T> {
    let Case { shards, ranks, len, gap, seed } = case;
    let (map, stride) = (ShardMap::new(shards, ranks).unwrap(), len + gap);
    let mut slots = vec![T::default(); map.slots(group.rank()) * stride];
    for step in map.schedule(group.rank()) {
        for i in 0..len {
            slots[step.slot * stride + i] = element(value(seed, step.shard, i));
        }
        for Fold { into, from } in step.folds {
            for i in 0..len {
                slots[into * stride + i] = T::sum(slots[into * stride + i], slots[from * stride + i]);
            }
        }
    }
    let start = slots.as_mut_ptr();
    match how {
        How::Blocking => group.all_reduce_shards(&mut slots, len, stride, shards).unwrap(),
        // SAFETY: the slots stay untouched until the handle has been waited for.
        How::Started => unsafe { group.all_reduce_shards_start(start, len, stride, shards) }.wait().unwrap(),
        How::InPieces => {
            // SAFETY: as above.
            unsafe { group.reduce_scatter_shards_start(start, len, stride, shards) }.wait().unwrap();
            let own = group.piece::<T>(group.rank(), len);
            slots[..own.start].fill(T::default());
            slots[own.end..].fill(T::default());
            // SAFETY: as above.
            unsafe { group.all_gather_pieces_start(start, len) }.wait().unwrap();
        }
        How::ByOne => {
            // SAFETY: as above.
            unsafe { group.reduce_shards_start(start, len, stride, shards, ranks - 1) }.wait().unwrap();
            if group.rank() + 1 < ranks {
                slots[..len].fill(T::default());
            }
            group.broadcast(&mut slots[..len], ranks - 1).unwrap();
        }
    }
    slots.truncate(len);
    slots
}

fn check<T: Element>(case: Case, transport: &'static str, element: fn(f64) -> T, bits: fn(T) -> u64) {
    let Case { shards, ranks, len, seed, .. } = case;
    let expected: Vec<_> = (0..len)
        .map(|i| bits(tree_fold(shards, &mut |shard| element(value(seed, shard, i)), &mut T::sum).unwrap()))
        .collect();
    let results = run_ranks(kept_groups(ranks, transport), move |group| {
        [How::Blocking, How::Started, How::InPieces, How::ByOne].map(|how| sum(&group, case, element, how))
    });
    for (rank, results) in results.into_iter().enumerate() {
        for result in results {
            let same = result.into_iter().map(bits).eq(expected.iter().copied());
            assert!(same, "rank {rank} over {transport}: other bits, {case:?}");
        }
    }
}

fn check_all(case: Case) {
    for transport in transports(case.ranks) {
        check(case, transport, |x| x as f32, |x| x.to_bits().into());
        check(case, transport, |x| Bf16::from_f32(x as f32), |x| x.to_bits().into());
        check(case, transport, |x| x, f64::to_bits);
        check(case, transport, |x| x.to_bits() as i64, |x| x as u64);
        check(case, transport, |x| x.to_bits() as u8, u64::from);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn ranks_change_no_bit(shards in 1usize..=9, ranks in 1usize..=5, len in 0usize..5000, gap in 0usize..40, seed: u64) {
        prop_assume!(ranks <= shards);
        check_all(Case { shards, ranks, len, gap, seed });
    }
}

#[test]
fn ranks_change_no_bit_through_many_rounds() {
    // One partial sum per rank, and up to three: several rounds of both transports.
    let cases = if needs::time() { &[(4, 2), (6, 2), (16, 3), (9, 4)][..] } else { &[(4, 2), (16, 3)] };
    for &(shards, ranks) in cases {
        let case = Case { shards, ranks, len: 600_001, gap: 3, seed: 7 };
        for transport in transports(ranks) {
            check(case, transport, |x| x as f32, |x| x.to_bits().into());
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
