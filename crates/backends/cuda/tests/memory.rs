//! The memory of a program on the emulated GPU, whose free bytes all tests of a process share, and what a step allocates on
//! the host, which counts for all threads: so there is one test.

use enmasse_cuda::libraries::Libraries;
use enmasse_device::{Device, DeviceRequest, HostBatch, Hosting, StepInputs};
use enmasse_graph::{CompileOptions, Conv, Metric, Mode, Phase, Plans, Tensor};
use test_support::heap::allocations;

fn small(x: Tensor) -> Tensor {
    let x = x.conv2d("conv", Conv::new(6, 3).padding(1)).batch_norm("bn").relu();
    x.adaptive_avg_pool([2, 2]).flatten().linear("fc", 4)
}

fn plans(device: &dyn Device, shards: usize, batch: usize) -> Plans {
    let metrics = vec![Metric::Top(2), Metric::GradientNorm];
    let options = CompileOptions { shards, metrics, ..CompileOptions::new("small", batch, 8, 4) };
    device.target().compile(&small, &options).unwrap()
}

/// The stated memory without what libraries may take, which the emulated ones do not.
fn stated(device: &dyn Device, plans: &Plans) -> usize {
    let stated = device.memory(plans, &Hosting::new(plans, None).unwrap()).unwrap();
    stated.total() - stated.library
}

#[test]
fn memory_is_what_was_stated_and_steps_allocate_nothing() {
    let Some(folder) = enmasse_emulation::folder() else { return };
    // SAFETY: nothing else of this process reads or writes the environment yet.
    unsafe { std::env::set_var("EMULATED_GPU_MIB", "64") };
    let libraries = Libraries::in_folders(&[folder.to_owned()]);
    let device = enmasse_cuda::open_with(&libraries, &DeviceRequest::default()).unwrap();
    let device = device.as_ref();
    let free = || device.free_memory().unwrap().unwrap();
    for shards in [1, 3] {
        let plans = plans(device, shards, 3);
        let stated = stated(device, &plans);
        let before = free();
        let program = device.compile(plans, None).unwrap();
        assert_eq!(before - free(), stated, "{shards} shards");
        drop(program);
        assert_eq!(free(), before);
        steps_allocate_nothing(device, shards);
    }
    rejoining_holds_memory_once(device);
}

fn batch(samples: usize) -> HostBatch {
    HostBatch {
        images: (0..samples * 8 * 8 * 3).map(|i| (i * 7919 % 251) as u8).collect(),
        labels: (0..samples as i32).map(|i| i % 4).collect(),
        sample_indices: (0..samples as u64).collect(),
        ..HostBatch::default()
    }
}

/// Training steps in flight as in the loop, and evaluation, once the graphs of both places are captured.
fn steps_allocate_nothing(device: &dyn Device, shards: usize) {
    let mut program = device.compile(plans(device, shards, 3), None).unwrap();
    let inputs = StepInputs { learning_rate: 0.01, ..StepInputs::evaluation(batch(3 * shards).into()) };
    let mut number = 0;
    let mut round = || {
        let start = allocations();
        let mut before = None;
        for mode in [Mode::Train, Mode::Train, Mode::Evaluate] {
            number += 1;
            let inputs = StepInputs { optimizer_step: number, ..inputs.clone() };
            let phases = if mode == Mode::Train { &Phase::ALL[..] } else { &[Phase::Forward, Phase::Loss] };
            let ticket = program.submit(mode, phases, &inputs).unwrap();
            if let Some(ticket) = before.replace(ticket) {
                assert!(program.metrics(ticket).unwrap().loss.is_finite());
            }
        }
        before.map(|ticket| program.metrics(ticket).unwrap());
        allocations() - start
    };
    (0..4).for_each(|_| {
        round();
    });
    for again in 0..4 {
        assert_eq!(round(), 0, "{shards} shards, round {again}");
    }
}

/// A program that takes more than half of the GPU's memory joins another group, with its state.
fn rejoining_holds_memory_once(device: &dyn Device) {
    let larger = plans(device, 1, 1 << 16);
    let plans = plans(device, 1, 64);
    let mut program = device.compile(plans.clone(), None).unwrap();
    program.load("fc.bias", &[1.0, 2.0, 3.0, 4.0]).unwrap();
    let stated = stated(device, &plans);
    let free = || device.free_memory().unwrap().unwrap();
    // Other programs take the rest.
    let others = free() / stated;
    let _others: Vec<_> = (0..others).map(|_| device.compile(plans.clone(), None).unwrap()).collect();
    let before = free();
    assert!(before < stated, "{before} bytes are free, {stated} stated");
    program.rejoin(plans.clone(), None).unwrap();
    assert_eq!(free(), before);
    // Without memory no step begins. The state stays, and another group may do with less.
    let refused = program.rejoin(larger, None).unwrap_err().to_string();
    assert!(refused.starts_with("no memory for "), "{refused}");
    let inputs = StepInputs::evaluation(batch(64).into());
    for phases in [&Phase::ALL[..2], &Phase::ALL[1..2]] {
        program.submit(Mode::Evaluate, phases, &inputs).unwrap_err();
    }
    program.rejoin(plans, None).unwrap();
    program.submit(Mode::Evaluate, &Phase::ALL[..2], &inputs).unwrap();
    assert_eq!(program.store("fc.bias").unwrap(), [1.0, 2.0, 3.0, 4.0]);
}
