//! Loss scaling on the GPU and in the reference: steps that are skipped, and what they leave as it was.

use enmasse_device::{LossScale, Program};
use enmasse_graph::optimizers::{AdamW, Lars, Sgd};
use enmasse_graph::{Arena, Averaging, CompileOptions, Conv, Metric, Mode, Optimizer, Phase, Plans, Precision, Tensor};
use enmasse_reference::ReferenceProgram;

use crate::gpu;
use crate::program::{Batch, assert_agree, fill, state};

const SCALE: &str = "optimizer.loss_scale.scale";
const GOOD: &str = "optimizer.loss_scale.good_steps";
const SKIPPED: &str = "optimizer.loss_scale.skipped_steps";

/// With this scale the gradients of activations overflow f16.
const HUGE: f64 = (1u64 << 40) as f64;

fn net(x: Tensor) -> Tensor {
    let x = x.conv2d("conv1", Conv::new(8, 3).padding(1).no_bias()).batch_norm("bn").relu();
    x.conv2d("conv2", Conv::new(8, 3)).relu().adaptive_avg_pool([2, 2]).flatten().linear("fc", 4)
}

/// Plans with everything that depends on whether a step is skipped.
fn plans(shards: usize, change: impl Fn(CompileOptions) -> CompileOptions) -> Option<Plans> {
    let options = CompileOptions {
        precision: Precision::F16,
        shards,
        sync_batch_norm: shards > 1,
        average: Some(Averaging::Ema(0.5)),
        optimizer: Optimizer::AdamW(AdamW { betas: [0.9, 0.99], epsilon: 1e-3 }),
        ..CompileOptions::new("net", 3, 8, 4)
    };
    Some(gpu()?.target().compile(&net, &change(options)).unwrap())
}

/// The plans on the GPU, and in the reference.
fn programs(plans: &Plans) -> [Box<dyn Program>; 2] {
    let gpu = gpu().unwrap().compile(plans.clone(), None).unwrap();
    let reference = ReferenceProgram::rounding(plans.clone(), None).unwrap();
    let mut programs: [Box<dyn Program>; 2] = [gpu, Box::new(reference)];
    programs.iter_mut().for_each(|program| fill(&mut **program));
    programs
}

fn step(program: &mut dyn Program, batch: u64, number: u64) -> LossScale {
    let batch = Batch::random(program.plans(), batch);
    let ticket = program.submit(Mode::Train, &Phase::ALL, &batch.inputs(number)).unwrap();
    program.metrics(ticket).unwrap().loss_scale.unwrap()
}

fn number(program: &mut dyn Program, name: &str) -> f64 {
    program.store(name).unwrap()[0]
}

/// Parameters, the optimiser's state and averages of parameters, without loss scaling.
fn bits(program: &mut dyn Program) -> Vec<(String, Vec<u64>)> {
    let of_state = |arena| !matches!(arena, Arena::Buffers | Arena::LossScale);
    let tensors = program.plans().state.clone().into_iter().filter(|tensor| of_state(tensor.slot.arena));
    let names = tensors.map(|tensor| tensor.name).filter(|name| !name.contains("running_"));
    names
        .map(|name| (name.clone(), program.store(&name).unwrap().iter().map(|value| value.to_bits()).collect()))
        .collect()
}

#[test]
fn a_step_whose_gradients_overflow_is_skipped() {
    for (shards, clip_norm) in [(1, None), (1, Some(0.1)), (3, None)] {
        let Some(plans) = plans(shards, |options| CompileOptions { clip_norm, ..options }) else { return };
        for mut program in programs(&plans) {
            let program = &mut *program;
            assert_eq!([SCALE, GOOD, SKIPPED].map(|name| number(program, name)), [65536.0, 0.0, 0.0]);
            program.load(SCALE, &[HUGE]).unwrap();
            let before = bits(program);
            let running = program.store("bn.running_mean").unwrap();
            assert_eq!(step(program, 1, 1), LossScale { scale: HUGE, skipped: true });
            assert!(bits(program) == before, "{shards} {clip_norm:?}");
            assert!(program.store("bn.running_mean").unwrap() != running, "forward was fine");
            assert_eq!([SCALE, GOOD, SKIPPED].map(|name| number(program, name)), [HUGE / 2.0, 0.0, 1.0]);
            // Two steps in flight, of which the first is skipped.
            let batches = [1, 2].map(|number| Batch::random(program.plans(), number));
            let tickets = [2, 3].map(|number: u64| {
                program.submit(Mode::Train, &Phase::ALL, &batches[number as usize - 2].inputs(number)).unwrap()
            });
            let found = tickets.map(|ticket| program.metrics(ticket).unwrap().loss_scale.unwrap().skipped);
            assert_eq!((found, number(program, SKIPPED)), ([true, true], 3.0));
            program.load(SCALE, &[1024.0]).unwrap();
            assert_eq!(step(program, 2, 4), LossScale { scale: 1024.0, skipped: false });
            assert!(bits(program).iter().zip(&before).all(|(after, before)| after != before));
            assert_eq!([SCALE, GOOD, SKIPPED].map(|name| number(program, name)), [1024.0, 1.0, 3.0]);
        }
    }
}

/// Steps after a skipped one are those of a run in which it was not: the count of updates, and the first average.
#[test]
fn a_skipped_step_leaves_no_trace() {
    for shards in [1, 2] {
        let Some(plans) = plans(shards, |options| options) else { return };
        for (mut plain, mut other) in programs(&plans).into_iter().zip(programs(&plans)) {
            other.load(SCALE, &[HUGE]).unwrap();
            assert!(step(&mut *other, 1, 1).skipped);
            other.load(SCALE, &[65536.0]).unwrap();
            for number in 1..=3 {
                let scales = [step(&mut *plain, 7 + number, number), step(&mut *other, 7 + number, number + 1)];
                assert_eq!(scales[0], scales[1]);
            }
            assert!(bits(&mut *plain) == bits(&mut *other), "{shards} shards");
        }
    }
}

#[test]
fn the_scale_grows_after_enough_good_steps() {
    let Some(plans) = plans(1, |options| options) else { return };
    for mut program in programs(&plans) {
        let program = &mut *program;
        program.load(SCALE, &[8.0]).unwrap();
        program.load(GOOD, &[1998.0]).unwrap();
        let scales = [1, 2, 3].map(|number| step(program, number, number).scale);
        assert_eq!((scales, number(program, SCALE), number(program, GOOD)), ([8.0, 8.0, 16.0], 16.0, 1.0));
    }
}

/// The scale is a power of two, so that the update and the norm are the same with any, until activations leave the range of f16.
#[test]
fn updates_do_not_depend_on_the_scale() {
    let metrics = || vec![Metric::GradientNorm];
    let change = |options| CompileOptions { metrics: metrics(), clip_norm: Some(0.1), ..options };
    let lars = Optimizer::Lars(Lars { momentum: 0.9, trust_coefficient: 0.01, epsilon: 1e-8 });
    for optimizer in [Optimizer::Sgd(Sgd { momentum: 0.9, nesterov: false }), lars] {
        let Some(plans) = plans(1, |options| CompileOptions { optimizer: optimizer.clone(), ..change(options) }) else {
            return;
        };
        let [mut gpu, mut reference] = programs(&plans);
        let mut norms = Vec::new();
        for scale in [4096.0, 16384.0] {
            for program in [&mut gpu, &mut reference] {
                fill(&mut **program);
                for name in state(&plans).iter().filter(|name| name.contains("momentum")) {
                    let zeros = vec![0.0; program.store(name).unwrap().len()];
                    program.load(name, &zeros).unwrap();
                }
                program.load(SCALE, &[scale]).unwrap();
                assert!(!step(&mut **program, 1, 1).skipped);
                norms.push(number(&mut **program, "gradient_norm"));
            }
            assert_agree(&format!("{optimizer}"), &state(&plans), &mut *gpu, &mut *reference, 2e-3);
        }
        assert!(norms.iter().all(|norm| (norm / norms[0] - 1.0).abs() < 2e-3), "{norms:?}");
    }
}
