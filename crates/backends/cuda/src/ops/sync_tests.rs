//! Statistics and sums over shards against the reference's, and their order.

use enmasse_graph::Arena;
use enmasse_reference::ops::sync;
use enmasse_reference::tree;

use super::*;
use crate::test_support::{Bench, assert_rounded, noise, wide};
use crate::work::Memory;

const ACTIVATIONS: Memory = Memory::Arena(Arena::Activations);

/// Pairs of rows of each shard, and what every shard gets of them.
type Rows = Vec<[Vec<f32>; 2]>;

/// A function that makes the kernels, from the pairs of all shards and their results.
type Make = fn(&[[Span; 2]], &[[Span; 2]]) -> Vec<Kernel>;

/// Runs `make` over pairs of rows of each shard. Returns what the shards get.
fn run(rows: &Rows, make: Make) -> Option<Rows> {
    let mut bench = Bench::new()?;
    let mut put = |rows: &Rows| -> Vec<[Span; 2]> {
        rows.iter().map(|[a, b]| [a, b].map(|row| bench.put_in(ACTIVATIONS, row))).collect()
    };
    let of_shards = put(rows);
    let results = put(&vec![[(); 2].map(|()| vec![f32::NAN; rows[0][0].len()]); rows.len()]);
    bench.run_all(&make(&of_shards, &results));
    Some(results.iter().map(|pair| pair.map(|row| bench.get::<f32>(row))).collect())
}

/// Shards and channels: powers of two and none, more shards than a kernel has operands, more channels than a block has
/// threads.
const SIZES: [[usize; 2]; 8] = [[1, 3], [2, 64], [3, 1], [5, 300], [7, 33], [8, 2], [9, 7], [21, 5]];

#[test]
fn statistics_equal_the_reference() {
    for [shards, channels] in SIZES {
        let rows: Rows = (0..shards as u64)
            .map(|shard| {
                let means = noise::<f32>(shard, channels, 1.0).iter().map(|mean| mean + 100.0).collect();
                [means, noise::<f32>(100 + shard, channels, 1.0).iter().map(|variance| variance.abs()).collect()]
            })
            .collect();
        let columns = |row: usize| rows.iter().map(|pair| wide(&pair[row])).collect::<Vec<_>>();
        let (mean, variance) = sync::statistics(&columns(0), &columns(1), 49);
        let Some(results) = run(&rows, sync_statistics) else { return };
        for [found_mean, found_variance] in results {
            assert_rounded(&format!("mean of {shards} x {channels}"), &found_mean, &mean, 1e-7);
            assert_rounded(&format!("variance of {shards} x {channels}"), &found_variance, &variance, 5e-7);
        }
    }
}

#[test]
fn sums_have_the_bits_of_the_tree() {
    for [shards, channels] in SIZES {
        let rows: Rows =
            (0..shards as u64).map(|shard| [shard, 100 + shard].map(|key| noise::<f32>(key, channels, 1.0))).collect();
        let add = |a: Vec<f32>, b: Vec<f32>| a.iter().zip(&b).map(|(a, b)| a + b).collect();
        let expected = [0, 1].map(|row| {
            let of_shards: Vec<_> = rows.iter().map(|pair| pair[row].clone()).collect();
            tree::reduce(&of_shards, &add).unwrap()
        });
        let Some(sums) = run(&rows, sync_sum) else { return };
        assert!(sums.iter().all(|found| *found == expected), "{shards} x {channels}");
    }
}
