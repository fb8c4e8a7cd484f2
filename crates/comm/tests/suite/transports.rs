//! The same bits over every transport: threads, shared memory, TCP, and nodes that use both, against a plain model.

use crate::common::{groups, kept_groups, run_ranks, transports, value};
use enmasse_comm::{Element, Group, Reduction, tree_fold};
use enmasse_tensor::Bf16;
use proptest::prelude::*;

fn bf16(value: f64) -> Bf16 {
    Bf16::from_f32(value as f32)
}

/// The results on each rank of an all-reduce of each type, as bits.
fn reduce(group: &Group, seed: u64, len: usize, reduction: Reduction) -> Vec<u64> {
    fn one<T: Element>(group: &Group, mut data: Vec<T>, reduction: Reduction, bits: fn(T) -> u64) -> Vec<u64> {
        group.all_reduce_with(&mut data, reduction).unwrap();
        data.into_iter().map(bits).collect()
    }
    let values = || (0..len).map(|i| value(seed, group.rank(), i));
    let mut all = one(group, values().map(|x| x as f32).collect(), reduction, |x| x.to_bits().into());
    all.extend(one(group, values().map(bf16).collect(), reduction, |x| x.to_bits().into()));
    all.extend(one(group, values().collect(), reduction, f64::to_bits));
    all.extend(one(group, values().map(|x| x.to_bits() as i64).collect(), reduction, |x| x as u64));
    all.extend(one(group, values().map(|x| x.to_bits() as i32).collect(), reduction, |x| x as u64));
    all
}

fn model(ranks: usize, seed: u64, len: usize, reduction: Reduction) -> Vec<u64> {
    fn one<T: Element>(ranks: usize, len: usize, reduction: Reduction, get: impl Fn(usize, usize) -> T) -> Vec<T> {
        let mut combine = match reduction {
            Reduction::Sum => T::sum,
            Reduction::Max => T::max,
            Reduction::Min => T::min,
        };
        (0..len).map(|i| tree_fold(ranks, &mut |rank| get(rank, i), &mut combine).unwrap()).collect()
    }
    let get = |rank, i| value(seed, rank, i);
    let mut all: Vec<u64> =
        one(ranks, len, reduction, |r, i| get(r, i) as f32).iter().map(|x| x.to_bits().into()).collect();
    all.extend(one(ranks, len, reduction, |r, i| bf16(get(r, i))).iter().map(|x| u64::from(x.to_bits())));
    all.extend(one(ranks, len, reduction, get).iter().map(|x| x.to_bits()));
    all.extend(one(ranks, len, reduction, |r, i| get(r, i).to_bits() as i64).iter().map(|&x| x as u64));
    all.extend(one(ranks, len, reduction, |r, i| get(r, i).to_bits() as i32).iter().map(|&x| x as u64));
    all
}

fn check(ranks: usize, transport: &'static str, seed: u64, len: usize, reduction: Reduction) {
    let members = kept_groups(ranks, transport);
    let expected = model(ranks, seed, len, reduction);
    for (rank, got) in run_ranks(members, move |group| reduce(&group, seed, len, reduction)).into_iter().enumerate() {
        assert!(got == expected, "rank {rank} of {ranks} over {transport}: other bits, {len} elements, seed {seed}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn the_same_bits_everywhere(ranks in 2usize..=5, seed: u64, len in 0usize..5000, odd in 0usize..3) {
        let reduction = [Reduction::Sum, Reduction::Max, Reduction::Min][odd];
        for transport in transports(ranks) {
            check(ranks, transport, seed, len, reduction);
        }
    }
}

#[test]
fn the_same_bits_through_many_rounds() {
    let worlds = if needs::time() { &[2, 3, 4, 5][..] } else { &[2, 5] };
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
                let results = run_ranks(groups(ranks, transport), move |group| {
                    let own: Vec<u8> = (0..len).map(|i| (i * 7 + group.rank()) as u8).collect();
                    let mut all = vec![0; len * ranks];
                    group.all_gather(&own, &mut all).unwrap();
                    let mut pieces = vec![0u8; len];
                    let piece = group.piece::<u8>(group.rank(), len);
                    piece.clone().for_each(|i| pieces[i] = (i * 7) as u8);
                    group.all_gather_pieces(&mut pieces).unwrap();
                    assert!(pieces.iter().enumerate().all(|(i, &x)| x == (i * 7) as u8), "{transport}");
                    let mut copy = own;
                    group.broadcast(&mut copy, ranks - 1).unwrap();
                    group.barrier().unwrap();
                    (all, copy, group.all_gather_bytes(&[1, 2][..group.rank().min(2)]).unwrap())
                });
                for (all, copy, few) in results {
                    let expected = |i: usize, rank: usize| (i * 7 + rank) as u8;
                    assert!((0..ranks).all(|r| (0..len).all(|i| all[r * len + i] == expected(i, r))), "{transport}");
                    assert!(copy.iter().enumerate().all(|(i, &x)| x == expected(i, ranks - 1)), "{transport}");
                    assert_eq!(few, [&[][..], &[1], &[1, 2], &[1, 2]][..ranks]);
                }
            }
        }
    }
}
