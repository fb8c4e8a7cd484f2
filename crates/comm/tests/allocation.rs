//! Operations allocate nothing once a group runs, over every transport. (A separate program, because it counts for all
//! threads.)

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use common::{joined, run_ranks};
use enmasse_comm::{Group, TransportChoice};

struct Counting;

static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: forwards every call to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTING.load(Ordering::SeqCst) {
            ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

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
    group.broadcast(&mut [3u8; 100], 1).unwrap();
    group.all_gather(&[7], gathered).unwrap();
    group.watch("ncclAllReduce", 4096).unwrap().done().unwrap();
    group.barrier().unwrap();
    group.check().unwrap();
}

#[test]
fn steps_allocate_nothing() {
    for transport in ["threads", "shared", "tcp"] {
        let groups = match transport {
            "threads" => Group::threads(3).unwrap(),
            "shared" => joined(3, TransportChoice::Shared),
            _ => joined(3, TransportChoice::Tcp),
        };
        let aligned = Arc::new(Barrier::new(3));
        let counts = run_ranks(groups, move |group| {
            let mut buckets = [1, 300_000, 1_500_000].map(|len| vec![1f32; len]);
            let mut gathered = [0; 3];
            step(&group, &mut buckets, &mut gathered);
            aligned.wait();
            COUNTING.store(true, Ordering::SeqCst);
            aligned.wait();
            for _ in 0..8 {
                step(&group, &mut buckets, &mut gathered);
            }
            aligned.wait();
            COUNTING.store(false, Ordering::SeqCst);
            aligned.wait();
            ALLOCATIONS.load(Ordering::SeqCst)
        });
        assert_eq!(counts, [0; 3], "{transport}");
    }
    COUNTING.store(true, Ordering::SeqCst);
    drop(std::hint::black_box(vec![0u8; 9]));
    assert!(ALLOCATIONS.load(Ordering::SeqCst) > 0, "the allocator does not count");
}
