//! Whole plans against the f64 reference: losses, gradients, state after some steps, evaluation.

use enmasse_device::{Program, StepMetrics};
use enmasse_graph::{
    CompileOptions, Conv, Freeze, Loss, Metric, Mode, Optimizer, ParameterGroups, PerSample, Phase, Plans, Pool,
    Precision, Target, Tensor,
};
use enmasse_reference::ReferenceProgram;
use enmasse_tensor::RandomStream;

use crate::gpu;
use crate::program::{Batch, assert_agree, fill, gradients, state};

fn run(program: &mut dyn Program, mode: Mode, batch: &Batch, step: u64) -> StepMetrics {
    let ticket =
        program.submit(mode, &Phase::ALL[..if mode == Mode::Train { 6 } else { 2 }], &batch.inputs(step)).unwrap();
    program.metrics(ticket).unwrap()
}

/// Compares the card with the reference, which rounds maps as the plan stores them.
fn check(name: &str, plans: &Plans, steps: u64, tolerance: f64) {
    let Some(device) = gpu() else { return };
    let mut card = device.compile(plans.clone(), None).unwrap();
    let mut reference = ReferenceProgram::rounding(plans.clone(), None).unwrap();
    fill(&mut *card);
    fill(&mut reference);
    for step in 1..=steps {
        let mut batch = Batch::random(plans, step);
        let (a, b) = (run(&mut *card, Mode::Train, &batch, step), run(&mut reference, Mode::Train, &batch, step));
        assert!((a.loss - b.loss).abs() <= tolerance * b.loss.abs().max(1.0), "{name} step {step}: {a:?} {b:?}");
        if step == 1 {
            assert_agree(name, &gradients(plans), &mut *card, &mut reference, tolerance);
        }
        // Later gradients are taken at parameters that already differ: rounding errors grow from step to step.
        let tolerance = tolerance * 10f64.powi(step as i32 - 1);
        batch.labels[0] = -1;
        let (a, b) = (run(&mut *card, Mode::Evaluate, &batch, step), run(&mut reference, Mode::Evaluate, &batch, step));
        assert!((a.loss - b.loss).abs() <= tolerance * b.loss.abs().max(1.0), "{name}: {a:?} {b:?}");
        assert_agree(name, &["logits".into(), "loss".into()], &mut *card, &mut reference, tolerance);
    }
    assert_agree(&format!("{name} state"), &state(plans), &mut *card, &mut reference, tolerance * 100.0);
}

fn compile(model: &dyn Fn(Tensor) -> Tensor, options: &CompileOptions) -> Option<Plans> {
    let device = gpu()?;
    let target: Target = device.target();
    Some(target.compile(model, options).unwrap())
}

/// Every kind of layer of a ResNet, at a small scale.
fn residual(x: Tensor) -> Tensor {
    let block = |x: Tensor, name: &str, channels, stride| {
        let conv = |i: usize| format!("{name}.conv{i}");
        let bn = |i: usize| format!("{name}.bn{i}");
        let y = x.clone().conv2d(&conv(1), Conv::new(channels, 3).padding(1).stride(stride).no_bias());
        let y = y.batch_norm(&bn(1)).relu();
        let y = y.conv2d(&conv(2), Conv::new(channels, 3).padding(1).no_bias()).batch_norm(&bn(2));
        let x = if stride == 1 {
            x
        } else {
            x.conv2d(&conv(3), Conv::new(channels, 1).stride(stride).no_bias()).batch_norm(&bn(3))
        };
        (y + x).relu()
    };
    let x = x.conv2d("conv1", Conv::new(20, 7).stride(2).padding(3).no_bias()).batch_norm("bn1").relu();
    let x = x.max_pool(Pool::new(3).stride(2).padding(1));
    let x = block(x, "layer1", 20, 1);
    let x = block(x, "layer2", 36, 2);
    let x = block(x, "layer3", 40, 2);
    x.adaptive_avg_pool([1, 1]).flatten().dropout("drop", 0.2).linear("fc", 7)
}

#[test]
fn a_small_residual_network() {
    for shards in [1, 3] {
        let loss = Loss::CrossEntropy { smoothing: 0.1 };
        let metrics = vec![Metric::GradientNorm];
        let options =
            CompileOptions { size: [37, 30], loss, shards, metrics, ..CompileOptions::new("residual", 5, 37, 7) };
        let Some(plans) = compile(&residual, &options) else { return };
        check(&format!("residual of {shards}"), &plans, 3, 2e-5);
    }
}

#[test]
fn shards_that_synchronise_their_batch_norms() {
    let options = CompileOptions { shards: 3, sync_batch_norm: true, ..CompileOptions::new("residual", 4, 32, 7) };
    let Some(plans) = compile(&residual, &options) else { return };
    check("synchronised", &plans, 3, 2e-5);
}

#[test]
fn maps_in_bf16() {
    let options =
        CompileOptions { size: [37, 30], precision: Precision::Bf16, ..CompileOptions::new("residual", 5, 37, 7) };
    let Some(plans) = compile(&residual, &options) else { return };
    check("residual in bf16", &plans, 1, 3e-2);
}

/// The focal loss with class weights, clamped below: uses every function of logits.
fn focal(logits: Tensor, targets: Tensor) -> Tensor {
    let log_p = logits.log_softmax();
    let p = (log_p.clone() * targets.clone()).sum_classes().exp();
    let weighted = (log_p.scale_classes(&[1.0, 0.5, 2.0, 1.5, 0.25, 3.0, 1.0]) * targets).sum_classes();
    p.clone().affine(-1.0, 1.0).power(2.0) * weighted.affine(-1.0, 0.0) + p.clamp_min(0.125).log().affine(-0.1, 0.0)
}

#[test]
fn a_loss_of_functions() {
    let loss = Loss::Own(PerSample::new(focal));
    let options = CompileOptions { loss, ..CompileOptions::new("residual", 4, 32, 7) };
    let Some(plans) = compile(&residual, &options) else { return };
    check("focal", &plans, 2, 2e-5);
}

#[test]
fn frozen_layers_adamw_and_averages() {
    let optimizer = Optimizer::AdamW { betas: [0.9, 0.99], epsilon: 1e-4 };
    let groups = ParameterGroups::one(0.1);
    let freeze = Freeze::Patterns(vec!["conv1*".into(), "bn1*".into(), "layer1*".into()]);
    let average = Some(0.9);
    let options = CompileOptions { freeze, optimizer, groups, average, ..CompileOptions::new("residual", 4, 32, 7) };
    let Some(plans) = compile(&residual, &options) else { return };
    check("frozen", &plans, 3, 2e-5);
}

/// Layers in random order, with values used once, many times or never.
fn random(x: Tensor, seed: u64) -> Tensor {
    let mut stream = RandomStream::new(seed, "model", 0, 0);
    let mut values = vec![x.conv2d("stem", Conv::new(4, 3).padding(1))];
    for index in 0..10 {
        let mut pick = || values[values.len() - 1 - stream.below(values.len().min(4) as u64) as usize].clone();
        let (x, other) = (pick(), pick());
        let name = format!("layer{index}");
        let pool = Pool::new(3).stride(1).padding(1);
        values.push(match stream.below(12) {
            0 => x.conv2d(&name, Conv::new(4, 3).padding(1)),
            1 => x.conv2d(&name, Conv::new(4, 1).groups(2).no_bias()),
            2 | 3 => x.batch_norm(&name),
            4 => x.batch_norm(&name).relu(),
            5 => (x.batch_norm(&name) + other).relu(),
            6 => x + other,
            7 => x.dropout(&name, 0.2),
            8 => x.avg_pool(pool),
            9 => x.max_pool(pool),
            10 => ((x.clone() + x.clone()) + (other.clone() + other)).relu6(),
            _ => x.relu(),
        });
    }
    let mut ends = values.into_iter().rev();
    let (Some(a), Some(b)) = (ends.next(), ends.next()) else { unreachable!("there are eleven values") };
    a.max_pool(Pool::new(2)).flatten().linear("a", 3) + b.adaptive_avg_pool([2, 2]).flatten().linear("b", 3)
}

#[test]
fn any_order_of_layers() {
    // A bias before a batch norm has a gradient of zero, of which only rounding error remains. This explains the tolerance.
    for seed in 0..30 {
        let options = CompileOptions { size: [5, 4], allow_unused: true, ..CompileOptions::new("random", 3, 5, 3) };
        let Some(plans) = compile(&|x: Tensor| random(x, seed), &options) else { return };
        check(&format!("random {seed}"), &plans, 2, 5e-3);
    }
}

/// An evaluation and the first step, whose parameters are the same on both devices. The gradients agree to `tolerance`.
fn check_first_step(name: &str, plans: &Plans, tolerance: f64) {
    let Some(device) = gpu() else { return };
    let mut card = device.compile(plans.clone(), None).unwrap();
    let mut reference = ReferenceProgram::new(plans.clone(), None).unwrap();
    fill(&mut *card);
    fill(&mut reference);
    let batch = Batch::random(plans, 1);
    for mode in [Mode::Evaluate, Mode::Train] {
        let (a, b) = (run(&mut *card, mode, &batch, 1), run(&mut reference, mode, &batch, 1));
        assert!((a.loss - b.loss).abs() <= 1e-3 * b.loss.abs().max(1.0), "{name} {mode:?}: {a:?} {b:?}");
    }
    assert_agree(name, &gradients(plans), &mut *card, &mut reference, tolerance);
}

/// The first step of models of the zoo at a small size: one of each kind, since the others only have more or wider layers of
/// the same kinds.
fn check_models(names: &[&str], tolerance: f64) {
    for name in names {
        let model = enmasse_models::find(name).unwrap();
        let size = if *name == "alexnet" { 63 } else { model.size().min(34) };
        let options = CompileOptions::new(*name, 2, size, 5);
        let Some(plans) = compile(&|x: Tensor| model.forward(x, 5), &options) else { return };
        check_first_step(name, &plans, tolerance);
    }
}

#[test]
fn models_of_the_zoo() {
    check_models(&["mlp", "lenet", "resnet18-cifar", "mobilenet_v2"], 5e-2);
    if needs::time() {
        check_models(&["alexnet"], 5e-2);
    }
}

/// Batch norm over the few pixels of the last maps magnifies rounding errors, the more the deeper the model: in PyTorch in
/// f32 as here.
#[test]
fn deep_models_of_the_zoo() {
    if needs::time() {
        check_models(&["resnet50", "resnext50_32x4d"], 0.3);
    }
}
