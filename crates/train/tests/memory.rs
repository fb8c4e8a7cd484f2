//! The memory that a plan states is what the program takes. Alone in its file: it measures the whole process.

use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_device::{Device, StepInputs};
use enmasse_graph::{Arena, Mode, Options, Phase, compile};

/// The CPU device at its best instruction set.
fn cpu(threads: usize) -> Cpu {
    Cpu::new(CpuOptions { threads, isa: None }).unwrap()
}

/// Bytes of this process that are resident now.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<usize>().unwrap() * 1024
}

#[test]
fn stated_bytes_are_within_a_tenth_of_measured_growth() {
    const BATCH: usize = 32;
    const SIZE: usize = 96;
    let model = enmasse_models::find("resnet18").unwrap();
    let plans = compile(&|x| model.forward(x, 10), &Options::new("resnet18", BATCH, SIZE, 10)).unwrap();
    let train = plans.train.as_ref().unwrap();
    let (shared, unshared) = (train.arena_bytes(Arena::Activations), train.unshared_activations);
    assert!(shared * 10 <= unshared * 7, "{shared} bytes of activations, {unshared} without reuse");

    let device = cpu(2);
    let memory = device.memory(&plans);
    let before = resident();
    let mut program = device.compile(plans, None).unwrap();
    // Weights stay zero: setting them would pass through copies whose memory the allocator may keep for later.
    let (images, labels, indices) = (vec![90; BATCH * SIZE * SIZE * 3], vec![3; BATCH], vec![7; BATCH]);
    for step in 1..=2 {
        let inputs = StepInputs {
            images: &images,
            labels: &labels,
            sample_indices: &indices,
            epoch: 0,
            learning_rate: 1e-3,
            optimizer_step: step,
        };
        let ticket = program.submit(Mode::Train, &Phase::ALL, &inputs).unwrap();
        program.metrics(ticket).unwrap();
    }
    let (grown, stated) = (resident() - before, memory.arenas + memory.scratch);
    assert!(grown.abs_diff(stated) * 10 <= stated, "stated {stated} bytes ({memory:?}), grew by {grown}");
}
