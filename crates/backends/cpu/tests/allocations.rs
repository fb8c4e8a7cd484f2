//! A step allocates nothing, and a program takes the stated amount of memory.

#[path = "suite/common/mod.rs"]
mod common;

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{Batch, Fading};
use enmasse_comm::{Group, Rendezvous, TransportChoice};
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_device::{Device, Hosting, Program, StepInputs};
use enmasse_graph::optimizers::{AdamW, Custom};
use enmasse_graph::{Arena, CompileOptions, Metric, Mode, Phase, Strategy, Target, Tensor, compile};
use enmasse_tensor::DType;
use test_support::heap::{allocations, held_after};

/// Bytes of this process, from the kernel's line of this name.
fn of_process(name: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// Resident memory.
fn resident() -> usize {
    of_process("VmRSS:")
}

/// Bytes that a rank's program maps and allocates with AdamW, of two ranks that each have all of its state, and of two that share it; and what the
/// program states that its state takes.
fn held_by_ranks(strategy: Strategy) -> [(usize, usize); 2] {
    let model = enmasse_models::find("resnet18").unwrap();
    let optimizer = AdamW::default().into();
    let options = CompileOptions { shards: 2, optimizer, strategy, ..CompileOptions::new("resnet18", 2, 32, 10) };
    let plans = compile(&|x: Tensor| model.forward(x, 10), &options).unwrap();
    let cpu = Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap();
    let mut groups = Group::threads(2).unwrap().into_iter();
    [0, 1].map(|rank| {
        let plans = plans.clone().of_rank(rank);
        let group = groups.next().unwrap();
        let stated = cpu.memory(&plans, &Hosting::new(&plans, Some(&group)).unwrap()).unwrap().state;
        let mapped = of_process("VmSize:");
        let (program, held) = held_after(|| cpu.compile(plans, Some(group)).unwrap());
        // The arenas are mapped, not allocated.
        let mapped = of_process("VmSize:") - mapped;
        drop(program);
        (mapped + held as usize, stated)
    })
}

/// What a rank saves that has a part of the optimiser's state is what it says.
fn shared_state_is_held_once() {
    let all = held_by_ranks(Strategy::Distributed);
    let parts = held_by_ranks(Strategy::Partitioned { ranks: 2 });
    let of_optimizer: usize = all.iter().zip(&parts).map(|((_, all), (_, part))| all - part).sum();
    for ((held, stated), (held_part, stated_part)) in all.into_iter().zip(parts) {
        let (saved, expected) = (held - held_part, stated - stated_part);
        // Half of 86 MiB, and no tensor is cut.
        assert!(expected.abs_diff(of_optimizer / 2) < 6 << 20, "{expected} of {of_optimizer}");
        // The allocator maps memory for small things in larger pieces.
        assert!(saved.abs_diff(expected) < 1 << 20, "{saved} bytes are saved, stated {expected}");
    }
}

/// Two ranks that share no memory.
fn ranks_over_tcp() -> Vec<Group> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    let [mut first, mut second] = [0, 1].map(|rank| Rendezvous::tcp(&address, rank, 2).unwrap());
    first.listener = Some(listener);
    for rank in [&mut first, &mut second] {
        rank.transport = TransportChoice::Tcp;
        // Heartbeats allocate, every few seconds, whatever a step does: none comes while steps are counted.
        rank.heartbeat = Duration::from_secs(3600);
    }
    let second = std::thread::spawn(move || second.join().unwrap());
    vec![first.join().unwrap(), second.join().unwrap()]
}

/// Allocations of two thread ranks in steps 3 to 10, collectives and an optimiser of the program's own included.
fn allocations_of_ranks(groups: Vec<Group>, strategy: Strategy, compress: Option<DType>) -> u64 {
    let model = enmasse_models::find("resnet18").unwrap();
    let optimizer = Custom::new(Fading).into();
    let options = CompileOptions {
        shards: 2,
        sync_batch_norm: true,
        optimizer,
        strategy,
        compress,
        clip_norm: Some(1.0),
        ..CompileOptions::new("resnet18", 2, 40, 10)
    };
    let target = Target { compresses_sums: true, ..Target::default() };
    let plans = target.compile(&|x: Tensor| model.forward(x, 10), &options).unwrap();
    let barrier = Barrier::new(2);
    let counted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for group in groups {
            let (plans, barrier, counted) = (&plans, &barrier, &counted);
            scope.spawn(move || {
                let inputs = Batch::random(plans, 1).shard(group.rank(), 2).inputs(1);
                let cpu = Cpu::new(CpuOptions { threads: 2, ..CpuOptions::default() }).unwrap();
                let mut program = cpu.compile(plans.clone().of_rank(group.rank()), Some(group)).unwrap();
                let mut steps = |range: std::ops::RangeInclusive<u64>| {
                    barrier.wait();
                    let start = allocations();
                    barrier.wait();
                    for step in range {
                        let inputs = StepInputs { optimizer_step: step, ..inputs.clone() };
                        program.submit(Mode::Train, &Phase::ALL, &inputs).unwrap();
                    }
                    barrier.wait();
                    let found = allocations() - start;
                    barrier.wait();
                    found
                };
                steps(1..=2);
                counted.fetch_max(steps(3..=10), Ordering::Relaxed);
            });
        }
    });
    counted.into_inner()
}

/// One test, because other tests in the process would allocate at the same time.
#[test]
fn steps_allocate_nothing_and_memory_is_as_stated() {
    let model = enmasse_models::find("resnet18").unwrap();
    let metrics = vec![Metric::Top(5), Metric::GradientNorm];
    let options = CompileOptions { metrics, ..CompileOptions::new("resnet18", 8, 96, 10) };
    let plans = compile(&|x: Tensor| model.forward(x, 10), &options).unwrap();
    let train = plans.train.as_ref().unwrap();
    let shared = train.arena_bytes(Arena::Activations);
    let unshared = train.unshared_activations;
    assert!(shared * 10 <= unshared * 7, "{shared} bytes of activations, {unshared} if none shared memory");
    let threads = 3;
    let instructions = train.instructions.len();
    let cpu = Cpu::new(CpuOptions { threads, ..CpuOptions::default() }).unwrap();
    let batch = Batch::random(&plans, 1);
    let before = resident();
    // Parameters stay zero, since the memory for setting them would be counted too.
    let stated = cpu.memory(&plans, &Hosting::new(&plans, None).unwrap()).unwrap();
    let mut program = cpu.compile(plans, None).unwrap();
    let inputs = batch.inputs(1);
    let step = |program: &mut dyn Program, number: u64| {
        let inputs = StepInputs { optimizer_step: number, ..inputs.clone() };
        let start = allocations();
        for mode in [Mode::Train, Mode::Evaluate] {
            let ticket = program.submit(mode, &Phase::ALL, &inputs).unwrap();
            program.metrics(ticket).unwrap();
        }
        allocations() - start
    };
    step(program.as_mut(), 1);
    step(program.as_mut(), 2);
    for number in 3..=10 {
        assert_eq!(step(program.as_mut(), number), 0, "step {number}");
    }
    program.start_timeline(2);
    for number in 11..=13 {
        assert_eq!(step(program.as_mut(), number), 0, "step {number}, on a timeline");
    }
    let spans = program.take_timeline();
    let instructions = (0..instructions).chain(0..instructions);
    assert!(spans.iter().map(|span| span.instruction).eq(instructions), "two steps in order, and no third");
    assert!(spans.iter().flat_map(|span| [span.began, span.ended]).is_sorted(), "one after another");
    assert_eq!(program.take_timeline(), []);
    let grown = resident().saturating_sub(before) as f64;
    let expected = stated.total() as f64;
    assert!((grown / expected - 1.0).abs() < 0.1, "grew by {grown} bytes, stated {expected}: {stated:?}");
    let threads = || Group::threads(2).unwrap();
    assert_eq!(allocations_of_ranks(threads(), Strategy::Distributed, None), 0, "two ranks");
    let compress = Some(DType::Bf16);
    assert_eq!(allocations_of_ranks(ranks_over_tcp(), Strategy::Distributed, compress), 0, "two ranks that compress");
    let shares = Strategy::Partitioned { ranks: 2 };
    assert_eq!(allocations_of_ranks(threads(), shares, None), 0, "two ranks that share the optimiser's state");
    shared_state_is_held_once();
}
