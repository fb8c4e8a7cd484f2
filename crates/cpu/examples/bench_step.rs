//! One training step on synthetic data, timed: `bench_step [MODEL] [SIZE] [BATCH] [THREADS] [STEPS]`.
//!
//! Prints images per second by the median, and the median and best time of a step.

use std::time::Instant;

use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_device::{Device, StepInputs};
use enmasse_graph::{CompileOptions, Init, Mode, Optimizer, ParameterGroups, Phase, Tensor, compile};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, otherwise: usize| arguments.get(i).map_or(Ok(otherwise), |text| text.parse());
    let name = arguments.first().map_or("resnet34", String::as_str);
    let (size, batch, threads, steps) = (number(1, 224)?, number(2, 16)?, number(3, 2)?, number(4, 9)?);
    let classes = if size <= 64 { 10 } else { 1000 };
    let model = enmasse_models::find(name)?;
    let optimizer = Optimizer::Sgd { momentum: 0.9, nesterov: false };
    let groups = ParameterGroups::one(5e-4);
    let options = CompileOptions { optimizer, groups, ..CompileOptions::new(name, batch, size, classes) };
    let plans = compile(&|x: Tensor| model.forward(x, classes), &options)?;
    let cpu = Cpu::new(CpuOptions { threads, ..CpuOptions::default() })?;
    let memory = cpu.memory(&plans);
    let state = plans.state.clone();
    let mut program = cpu.compile(plans, None)?;
    for tensor in state {
        let small = Init::Uniform { bound: 0.05 };
        let init = if tensor.name.ends_with("weight") && tensor.shape.len() > 1 { small } else { tensor.init };
        let elements = tensor.shape.elements();
        let values: Vec<f64> = init.values(0, &tensor.name, 0..elements).into_iter().map(f64::from).collect();
        program.load(&tensor.name, &values)?;
    }
    let images: Vec<u8> = (0..batch * size * size * 3).map(|i| (i * 7919 % 251) as u8).collect();
    let labels: Vec<i32> = (0..batch).map(|i| (i % classes) as i32).collect();
    let sample_indices: Vec<u64> = (0..batch as u64).collect();
    let mut times = Vec::new();
    for step in 0..steps as u64 + 2 {
        let inputs = StepInputs {
            images: &images,
            labels: &labels,
            sample_indices: &sample_indices,
            epoch: 0,
            learning_rate: 0.01,
            optimizer_step: step + 1,
            stop: false,
        };
        let start = Instant::now();
        let ticket = program.submit(Mode::Train, &Phase::ALL, &inputs)?;
        program.metrics(ticket)?;
        times.push(start.elapsed().as_secs_f64());
    }
    let mut timed = times.split_off(2);
    timed.sort_by(f64::total_cmp);
    let median = timed[timed.len() / 2];
    println!(
        "{name} {size} batch {batch}, {}: {:.1} images/s, median {:.1} ms, best {:.1} ms, {} MiB arenas, {} MiB scratch",
        cpu.name(),
        batch as f64 / median,
        median * 1e3,
        timed[0] * 1e3,
        memory.arenas >> 20,
        memory.scratch >> 20,
    );
    Ok(())
}
