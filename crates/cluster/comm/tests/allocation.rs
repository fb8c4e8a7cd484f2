//! Operations allocate nothing once a group runs, over every transport. (A separate program, because it counts for all
//! threads.)

#[path = "suite/common/mod.rs"]
mod common;

use std::sync::{Arc, Barrier};

use common::{groups, groups_by, run_ranks};
use enmasse_comm::{Algorithm, Compression, Group};
use test_support::heap::allocations;

/// A step as in training: buckets in flight, small sums in between.
fn step(group: &Group, buckets: &mut [Vec<f32>; 3], gathered: &mut [i64]) {
    let [a, b, c] = buckets.each_mut().map(|bucket| {
        // SAFETY: the bucket stays untouched until its handle has been waited for below.
        unsafe { group.all_reduce_start(bucket.as_mut_ptr(), bucket.len()) }
    });
    group.all_reduce(&mut [1f64; 65]).unwrap();
    // Seven shards on three ranks: two partial sums on each.
    group.all_reduce_shards(&mut [1f32; 80], 35, 40, 7).unwrap();
    for handle in [a, b, c] {
        handle.wait().unwrap();
    }
    let mut pieces = [1i32; 1000];
    group.reduce_scatter(&mut pieces).unwrap();
    group.all_gather_pieces(&mut pieces).unwrap();
    group.all_gather_parts(&mut pieces, &[10, 999, 1000]).unwrap();
    group.broadcast(&mut [3u8; 100], 1).unwrap();
    group.all_gather(&[7], gathered).unwrap();
    group.watch("ncclAllReduce", 4096).unwrap().done().unwrap();
    group.barrier().unwrap();
    group.check().unwrap();
}

/// Sums by every algorithm, over several chunks and over partial sums.
fn sums(group: &Group, data: &mut [f32]) {
    for algorithm in Algorithm::ALL {
        group.all_reduce_by(data, algorithm).unwrap();
    }
    group.all_reduce_shards(&mut [1f32; 80], 35, 40, 7).unwrap();
}

#[test]
fn steps_allocate_nothing() {
    for transport in ["threads", "shared", "tcp", "pairs", "cyclic"] {
        let groups = groups(3, transport);
        let aligned = Arc::new(Barrier::new(3));
        let counts = run_ranks(groups, move |group| {
            let mut buckets = [1, 300_000, 1_500_000].map(|len| vec![1f32; len]);
            let mut gathered = [0; 3];
            step(&group, &mut buckets, &mut gathered);
            let mut follower = group.flight_recorder().follow(1000);
            aligned.wait();
            let before = allocations();
            aligned.wait();
            for _ in 0..8 {
                follower.skip();
                step(&group, &mut buckets, &mut gathered);
                follower.collect();
            }
            aligned.wait();
            let counted = allocations() - before;
            aligned.wait();
            assert_eq!((follower.operations().len(), follower.lost()), (8 * 12, 0));
            counted
        });
        assert_eq!(counts, [0; 3], "{transport}");
    }
    for transport in ["threads", "shared", "tcp", "cyclic"] {
        let aligned = Arc::new(Barrier::new(3));
        let counts = run_ranks(groups_by(3, transport, Algorithm::Direct), move |group| {
            let mut data = vec![1f32; 500_000];
            sums(&group, &mut data);
            aligned.wait();
            let before = allocations();
            aligned.wait();
            sums(&group, &mut data);
            aligned.wait();
            let counted = allocations() - before;
            aligned.wait();
            counted
        });
        assert_eq!(counts, [0; 3], "{transport}");
    }
    for transport in ["shared", "tcp", "cyclic"] {
        let aligned = Arc::new(Barrier::new(3));
        let counts = run_ranks(groups(3, transport), move |group| {
            let (mut data, mut residual) = (vec![1f32; 500_000], vec![0f32; 500_000]);
            let mut sums = || {
                for to in Compression::ALL {
                    group.all_reduce_compressed(&mut data, to, &mut residual).unwrap();
                }
            };
            sums();
            aligned.wait();
            let before = allocations();
            aligned.wait();
            sums();
            aligned.wait();
            let counted = allocations() - before;
            aligned.wait();
            counted
        });
        assert_eq!(counts, [0; 3], "{transport}");
    }
    let before = allocations();
    drop(std::hint::black_box(vec![0u8; 9]));
    assert!(allocations() > before, "the allocator does not count");
}
