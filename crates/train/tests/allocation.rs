//! A step allocates nothing, collectives included. Alone in its file: the allocator counts for the whole process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use enmasse_comm::Group;
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_device::{Device, StepInputs};
use enmasse_graph::passes::BucketSizes;
use enmasse_graph::{Mode, Options, Phase, compile};
use enmasse_train::initialize;

/// The CPU device at its best instruction set.
fn cpu(threads: usize) -> Cpu {
    Cpu::new(CpuOptions { threads, isa: None }).unwrap()
}

struct Counting;

static WATCHING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if WATCHING.load(Ordering::Relaxed) {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn steps_three_to_ten_allocate_nothing() {
    const BATCH: usize = 4;
    const SIZE: usize = 32;
    let step = |group: Group| {
        let model = enmasse_models::find("resnet18").unwrap();
        let options = Options {
            shards: group.world_size(),
            sync_batch_norm: true,
            buckets: BucketSizes { first: 1 << 16, other: 4 << 20 },
            ..Options::new("resnet18", BATCH, SIZE, 10)
        };
        let plans = compile(&|x| model.forward(x, 10), &options).unwrap();
        let mut program = cpu(2).compile(plans, Some(group.clone())).unwrap();
        initialize(program.as_mut(), 0).unwrap();
        let (images, labels, indices) = (vec![90; BATCH * SIZE * SIZE * 3], vec![3; BATCH], vec![7; BATCH]);
        for step in 1..=10 {
            let inputs = StepInputs {
                images: &images,
                labels: &labels,
                sample_indices: &indices,
                epoch: 0,
                learning_rate: 1e-3,
                optimizer_step: step,
            };
            if step == 3 {
                group.barrier().unwrap();
                WATCHING.store(true, Ordering::Relaxed);
            }
            let ticket = program.submit(Mode::Train, &Phase::ALL, &inputs).unwrap();
            program.metrics(ticket).unwrap();
        }
        group.barrier().unwrap();
        WATCHING.store(false, Ordering::Relaxed);
    };
    std::thread::scope(|scope| {
        for group in Group::threads(2).unwrap() {
            scope.spawn(|| step(group));
        }
    });
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), 0);
}
