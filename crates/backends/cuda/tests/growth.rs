//! Steps take no more memory of the GPU as a run goes on. All tests of a process share its free bytes, so there is one. It also
//! runs on a real GPU, as `scripts/gpu-check` does, there for a thousand steps.

use enmasse_cuda::libraries::Libraries;
use enmasse_device::{DeviceRequest, HostBatch, StepInputs};
use enmasse_graph::{CompileOptions, Conv, Mode, Phase, Tensor};

fn small(x: Tensor) -> Tensor {
    let x = x.conv2d("conv", Conv::new(8, 3).padding(1).no_bias()).batch_norm("bn").relu();
    x.adaptive_avg_pool([2, 2]).flatten().linear("fc", 4)
}

#[test]
fn a_thousand_steps_take_no_more_memory() {
    // Of a real driver's own: a page or two for what it loads late.
    let (libraries, steps, slack) = match std::env::var_os("ENMASSE_TEST_GPU") {
        Some(_) => (Libraries::gather(), 1000, 4 << 20),
        None => match enmasse_emulation::folder() {
            Some(folder) => (Libraries::in_folders(&[folder.to_owned()]), 100, 0),
            None => return,
        },
    };
    let device = enmasse_cuda::open_with(&libraries, &DeviceRequest::default()).unwrap();
    let plans = device.target().compile(&small, &CompileOptions::new("small", 3, 8, 4)).unwrap();
    let mut program = device.compile(plans, None).unwrap();
    let images = vec![7; 3 * 8 * 8 * 3];
    let sample_indices = vec![0, 1, 2];
    let batch = HostBatch { images, labels: vec![1; 3], sample_indices, ..HostBatch::default() };
    let inputs = StepInputs { learning_rate: 0.01, ..StepInputs::evaluation(batch.into()) };
    let mut run = |numbers: std::ops::RangeInclusive<u64>| {
        for optimizer_step in numbers {
            let inputs = StepInputs { optimizer_step, ..inputs.clone() };
            let ticket = program.submit(Mode::Train, &Phase::ALL, &inputs).unwrap();
            program.metrics(ticket).unwrap();
        }
        device.free_memory().unwrap().unwrap()
    };
    // The first steps load kernels and make graphs.
    let before = run(1..=10);
    let after = run(11..=steps);
    assert!(before.abs_diff(after) <= slack, "{before} bytes free before, {after} after");
}
