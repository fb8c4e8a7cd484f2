//! The steps of a program: in flight, phase by phase, after a loss that is not finite, and what they may not do.

use enmasse_device::{Device, DeviceError, Program, StepMetrics, Ticket};
use enmasse_graph::ops::{Custom, CustomOperation, Parallel};
use enmasse_graph::optimizers::{self, CustomOptimizer, UpdateStep};
use enmasse_graph::{CompileOptions, Conv, Mode, Phase, Plans, Tensor};
use enmasse_tensor::Shape;

use crate::gpu;
use crate::program::{Batch, fill, state};

fn small(x: Tensor) -> Tensor {
    let x = x.conv2d("conv", Conv::new(6, 3).padding(1)).batch_norm("bn").relu();
    x.adaptive_avg_pool([2, 2]).flatten().dropout("drop", 0.3).drop_path("path", 0.3).linear("fc", 4)
}

fn plans(device: &dyn Device, shards: usize) -> Plans {
    let options = CompileOptions { shards, ..CompileOptions::new("small", 3, 8, 4) };
    device.target().compile(&small, &options).unwrap()
}

fn program(device: &dyn Device, shards: usize) -> Box<dyn Program> {
    let mut program = device.compile(plans(device, shards), None).unwrap();
    fill(&mut *program);
    program
}

fn submit(program: &mut dyn Program, number: u64, phases: &[Phase]) -> Ticket {
    let batch = Batch::random(program.plans(), number);
    program.submit(Mode::Train, phases, &batch.inputs(number)).unwrap()
}

pub fn bits(program: &mut dyn Program) -> Vec<Vec<u64>> {
    let names = state(program.plans());
    names.iter().map(|name| program.store(name).unwrap().iter().map(|value| value.to_bits()).collect()).collect()
}

#[test]
fn steps_in_flight_equal_steps_one_by_one() {
    let Some(device) = gpu() else { return };
    for shards in [1, 2] {
        let (mut one, mut two) = (program(&*device, shards), program(&*device, shards));
        let alone: Vec<StepMetrics> = (1..=5)
            .map(|step| {
                let ticket = submit(&mut *one, step, &Phase::ALL);
                one.metrics(ticket).unwrap()
            })
            .collect();
        let mut overlapped = Vec::new();
        let mut before = None;
        for step in 1..=5 {
            let ticket = submit(&mut *two, step, &Phase::ALL);
            overlapped.extend(before.replace(ticket).map(|ticket| two.metrics(ticket).unwrap()));
        }
        overlapped.extend(before.map(|ticket| two.metrics(ticket).unwrap()));
        assert_eq!(alone, overlapped, "{shards} shards");
        assert!(bits(&mut *one) == bits(&mut *two), "{shards} shards");
    }
}

#[test]
fn phases_one_by_one_equal_a_captured_step() {
    let Some(device) = gpu() else { return };
    let (mut whole, mut parts) = (program(&*device, 1), program(&*device, 1));
    for step in 1..=4 {
        let ticket = submit(&mut *whole, step, &Phase::ALL);
        let whole = whole.metrics(ticket).unwrap();
        for phase in Phase::ALL {
            submit(&mut *parts, step, &[phase]);
        }
        let ticket = submit(&mut *parts, step, &[]);
        assert_eq!(parts.metrics(ticket).unwrap(), whole);
    }
    assert!(bits(&mut *whole) == bits(&mut *parts));
}

/// The step after a failed one may be in flight when the caller learns of the failure. Neither changes anything.
#[test]
fn a_failed_step_and_those_in_flight_change_nothing() {
    let Some(device) = gpu() else { return };
    let mut program = program(&*device, 1);
    let ticket = submit(&mut *program, 1, &Phase::ALL);
    program.metrics(ticket).unwrap();
    let good = program.store("fc.weight").unwrap();
    let mut bad = good.clone();
    bad[0] = f64::INFINITY;
    program.load("fc.weight", &bad).unwrap();
    let before = bits(&mut *program);
    let first = submit(&mut *program, 2, &Phase::ALL);
    let second = submit(&mut *program, 3, &Phase::ALL);
    for ticket in [first, second] {
        let error = program.metrics(ticket).err();
        assert!(matches!(error, Some(DeviceError::NonFinite { shard: 0, .. })), "{error:?}");
    }
    assert!(bits(&mut *program) == before);
    program.load("fc.weight", &good).unwrap();
    let ticket = submit(&mut *program, 4, &Phase::ALL);
    assert!(program.metrics(ticket).unwrap().loss.is_finite());
    assert!(bits(&mut *program) != before);
}

#[test]
fn requests_travel_with_a_step() {
    let Some(device) = gpu() else { return };
    let mut program = program(&*device, 1);
    let mut check = |stop: bool, save: bool| {
        let mut inputs = Batch::random(program.plans(), 1).inputs(1);
        (inputs.stop, inputs.save) = (stop, save);
        let ticket = program.submit(Mode::Train, &Phase::ALL, &inputs).unwrap();
        let metrics = program.metrics(ticket).unwrap();
        assert_eq!((metrics.stop, metrics.save), (stop, save));
    };
    check(false, false);
    check(true, false);
    check(false, true);
}

#[test]
fn shards_one_after_another_run_whole() {
    let Some(device) = gpu() else { return };
    let mut program = program(&*device, 2);
    let inputs = Batch::random(program.plans(), 1).inputs(1);
    let error = program.submit(Mode::Train, &[Phase::Forward], &inputs).err().unwrap().to_string();
    assert!(error.contains("2 shards one after another: submit forward to backward"), "{error}");
}

#[test]
fn a_batch_or_a_name_that_does_not_fit() {
    let Some(device) = gpu() else { return };
    let mut program = program(&*device, 1);
    let mut batch = Batch::random(program.plans(), 1);
    batch.labels[1] = 4;
    let error = program.submit(Mode::Train, &Phase::ALL, &batch.inputs(1)).err().unwrap().to_string();
    assert!(error.contains("label 4"), "{error}");
    assert!(matches!(program.store("fc.wait"), Err(DeviceError::Name(_))));
    assert!(matches!(program.load("fc.bias", &[0.0]), Err(DeviceError::Size { expected: 4, found: 1, .. })));
}

#[test]
fn a_program_continues_with_its_state() {
    let Some(device) = gpu() else { return };
    let mut program = program(&*device, 1);
    let ticket = submit(&mut *program, 1, &Phase::ALL);
    program.metrics(ticket).unwrap();
    let before = bits(&mut *program);
    program.rejoin(plans(&*device, 2), None).unwrap();
    assert!(bits(&mut *program) == before);
    let ticket = submit(&mut *program, 2, &Phase::ALL);
    assert!(program.metrics(ticket).unwrap().loss.is_finite());
}

#[test]
fn time_of_each_instruction() {
    let Some(device) = gpu() else { return };
    let mut program = program(&*device, 1);
    program.start_profile();
    let ticket = submit(&mut *program, 1, &Phase::ALL);
    program.metrics(ticket).unwrap();
    let times = program.profile(Mode::Train);
    assert_eq!(times.len(), program.plans().train.as_ref().unwrap().instructions.len());
    assert!(times.iter().any(|time| !time.is_zero()));
}

#[test]
fn an_operation_of_a_programs_own_is_refused_by_name() {
    #[derive(Debug)]
    struct Halved;

    impl CustomOperation for Halved {
        fn name(&self) -> &'static str {
            "halved"
        }

        fn shape(&self, operands: &[Shape]) -> Result<Shape, String> {
            Ok(operands[0].clone())
        }

        fn compute(&self, operands: &[&[f32]], result: &mut [f32], _: &Parallel) {
            result.iter_mut().zip(operands[0]).for_each(|(y, x)| *y = x / 2.0);
        }
    }

    let Some(device) = gpu() else { return };
    let model = |x: Tensor| x.flatten().linear("fc", 4).custom(Custom::new(Halved), &[]);
    let plans = device.target().compile_evaluation(&model, &CompileOptions::new("small", 3, 8, 4)).unwrap();
    let error = device.compile(plans, None).err().unwrap().to_string();
    assert_eq!(error, "layer fc: the gpu cannot run halved (f32[3,4]) -> (f32[3,4])");
}

#[test]
fn an_optimiser_of_a_programs_own_is_refused_by_name() {
    #[derive(Debug)]
    struct Signs;

    impl CustomOptimizer for Signs {
        fn name(&self) -> &'static str {
            "signs"
        }

        fn update(&self, step: &UpdateStep, weights: &mut [f64], gradients: &[f64], _: &mut [&mut [f64]]) {
            weights.iter_mut().zip(gradients).for_each(|(w, g)| *w -= step.learning_rate * g.signum());
        }
    }

    let Some(device) = gpu() else { return };
    let optimizer = optimizers::Custom::new(Signs).into();
    let options = CompileOptions { optimizer, ..CompileOptions::new("small", 3, 8, 4) };
    let error = device.compile(device.target().compile(&small, &options).unwrap(), None).err().unwrap().to_string();
    let reason = "it is an optimiser of this program's own, which runs on CPUs alone";
    assert_eq!(error, format!("layer step: the gpu cannot run update {{signs}}: {reason}"));
}
