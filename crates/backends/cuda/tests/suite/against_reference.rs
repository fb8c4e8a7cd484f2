//! Whole plans against the f64 reference: losses, gradients, state after some steps, evaluation.

use enmasse_device::{Hosting, Program, StepMetrics};
use enmasse_graph::optimizers::AdamW;
use enmasse_graph::{
    Averaging, CompileOptions, Conv, Freeze, Linear, Loss, Metric, Mode, Optimizer, ParameterGroups, PerSample, Phase,
    Plans, Pool, Precision, Recompute, Target, TargetKind, Teacher, Tensor, losses,
};
use enmasse_reference::ReferenceProgram;

use crate::gpu;
use crate::models::{focal, largest_windows, modern, random, residual, squared_error, tokens};
use crate::program::{Batch, assert_agree, fill, gradients, state};
use crate::zoo::{NARROW, Narrow};

fn run(program: &mut dyn Program, mode: Mode, batch: &Batch, step: u64) -> StepMetrics {
    let ticket =
        program.submit(mode, &Phase::ALL[..if mode == Mode::Train { 6 } else { 2 }], &batch.inputs(step)).unwrap();
    program.metrics(ticket).unwrap()
}

/// Gives a scaled loss a scale with which no gradient overflows, even of weights: an engine may write those in f16.
fn set_scale(program: &mut dyn Program) {
    if program.plans().find("optimizer.loss_scale.scale").is_some() {
        program.load("optimizer.loss_scale.scale", &[256.0]).unwrap();
    }
}

/// Compares the GPU with the reference, which rounds activations as the plan stores them.
fn check(name: &str, plans: &Plans, steps: u64, tolerance: f64) {
    let Some(device) = gpu() else { return };
    let mut gpu = device.compile(plans.clone(), None).unwrap();
    let mut reference = ReferenceProgram::rounding(plans.clone(), None).unwrap();
    fill(&mut *gpu);
    fill(&mut reference);
    set_scale(&mut *gpu);
    set_scale(&mut reference);
    for step in 1..=steps {
        let mut batch = Batch::random(plans, step);
        let a = run(&mut *gpu, Mode::Train, &batch, step);
        let b = run(&mut reference, Mode::Train, &batch, step);
        assert!((a.loss - b.loss).abs() <= tolerance * b.loss.abs().max(1.0), "{name} step {step}: {a:?} {b:?}");
        if step == 1 {
            assert_agree(name, &gradients(plans), &mut *gpu, &mut reference, tolerance);
        }
        // Later gradients are taken at parameters that already differ: rounding errors grow from step to step.
        let tolerance = tolerance * 10f64.powi(step as i32 - 1);
        batch.labels[0] = -1;
        batch.for_evaluation();
        let a = run(&mut *gpu, Mode::Evaluate, &batch, step);
        let b = run(&mut reference, Mode::Evaluate, &batch, step);
        assert!((a.loss - b.loss).abs() <= tolerance * b.loss.abs().max(1.0), "{name}: {a:?} {b:?}");
        assert_agree(name, &["logits".into(), "loss".into()], &mut *gpu, &mut reference, tolerance);
    }
    assert_agree(&format!("{name} state"), &state(plans), &mut *gpu, &mut reference, tolerance * 100.0);
}

fn compile(model: &dyn Fn(Tensor) -> Tensor, options: &CompileOptions) -> Option<Plans> {
    let device = gpu()?;
    let target: Target = device.target();
    Some(target.compile(model, options).unwrap())
}

#[test]
fn max_pooling_of_256_elements() {
    for size in [16, 17] {
        let options = CompileOptions { size: [size, 16], ..CompileOptions::new("largest windows", 5, 16, 5) };
        let Some(plans) = compile(&largest_windows, &options) else { return };
        check("largest windows", &plans, 2, 2e-5);
    }
}

#[test]
fn a_small_residual_network() {
    for shards in [1, 3] {
        let loss = Loss::CrossEntropy { smoothing: 0.1, weights: Vec::new() };
        let metrics = vec![Metric::GradientNorm];
        let options =
            CompileOptions { size: [37, 30], loss, shards, metrics, ..CompileOptions::new("residual", 5, 37, 7) };
        let Some(plans) = compile(&residual, &options) else { return };
        check(&format!("residual of {shards}"), &plans, 3, 2e-5);
    }
}

#[test]
fn layer_norms_smooth_activations_and_factors_per_channel() {
    for (precision, tolerance) in [(Precision::F32, 2e-5), (Precision::Bf16, 6e-2), (Precision::F16, 1e-2)] {
        let options = CompileOptions { size: [19, 22], precision, ..CompileOptions::new("modern", 5, 19, 7) };
        let Some(plans) = compile(&modern, &options) else { return };
        check(&format!("modern in {precision}"), &plans, if precision == Precision::F32 { 3 } else { 1 }, tolerance);
    }
}

#[test]
fn layers_over_tokens() {
    for (precision, tolerance) in [(Precision::F32, 2e-5), (Precision::Bf16, 6e-2), (Precision::F16, 1e-2)] {
        let options = CompileOptions { size: [20, 24], precision, ..CompileOptions::new("tokens", 5, 20, 7) };
        let Some(plans) = compile(&tokens, &options) else { return };
        check(&format!("tokens in {precision}"), &plans, if precision == Precision::F32 { 3 } else { 1 }, tolerance);
    }
}

/// Paddings whose sides differ: of dense, grouped and depthwise convolutions, and of pools.
fn padded(x: Tensor) -> Tensor {
    let x = x.conv2d("stem", Conv::new(16, 3).stride(2).no_bias().same()).batch_norm("bn").silu();
    let y = x.clone().conv2d("grouped", Conv::new(16, 3).groups(2).padding_sides([[2, 0], [0, 2]]));
    let x = (x + y).conv2d("depthwise", Conv::new(16, 5).stride(2).groups(16).same());
    let x = x.clone().max_pool(Pool::new(2).stride(1).same()) + x.avg_pool(Pool::new(2).stride(1).same());
    x.flatten().linear("fc", 7)
}

#[test]
fn paddings_whose_sides_differ() {
    for (precision, tolerance) in [(Precision::F32, 2e-5), (Precision::Bf16, 6e-2), (Precision::F16, 1e-2)] {
        let options = CompileOptions { size: [22, 24], precision, ..CompileOptions::new("padded", 5, 22, 7) };
        let Some(plans) = compile(&padded, &options) else { return };
        check(&format!("padded in {precision}"), &plans, if precision == Precision::F32 { 3 } else { 1 }, tolerance);
    }
}

#[test]
fn global_batches_that_are_not_full() {
    for loss in [Loss::CrossEntropy { smoothing: 0.1, weights: Vec::new() }, Loss::Custom(PerSample::new(focal))] {
        for shards in [1, 3] {
            let loss = loss.clone();
            let size = [37, 30];
            let options =
                CompileOptions { size, loss, shards, weighted_loss: true, ..CompileOptions::new("residual", 5, 37, 7) };
            let Some(plans) = compile(&residual, &options) else { return };
            check(&format!("weighted of {shards}"), &plans, 3, 2e-5);
        }
    }
}

#[test]
fn mixtures_of_two_samples() {
    for loss in [Loss::CrossEntropy { smoothing: 0.1, weights: Vec::new() }, Loss::Custom(PerSample::new(focal))] {
        for shards in [1, 3] {
            let loss = loss.clone();
            let size = [37, 30];
            let options =
                CompileOptions { size, loss, shards, mixed: true, ..CompileOptions::new("residual", 5, 37, 7) };
            let Some(plans) = compile(&residual, &options) else { return };
            check(&format!("mixed of {shards}"), &plans, 3, 2e-5);
        }
    }
}

/// Outputs that are compared with values, in places with and without a sample.
#[test]
fn values_as_targets() {
    for shards in [1, 3] {
        let function = PerSample::new(squared_error);
        let metrics = vec![Metric::Custom { name: "mse".into(), function: function.clone() }];
        let (loss, target) = (Loss::Custom(function), TargetKind::Values(7));
        let options = CompileOptions {
            size: [37, 30],
            loss,
            target,
            metrics,
            shards,
            weighted_loss: true,
            ..CompileOptions::new("residual", 5, 37, 7)
        };
        let Some(plans) = compile(&residual, &options) else { return };
        check(&format!("values of {shards}"), &plans, 3, 2e-5);
    }
}

fn pooled(x: Tensor) -> Tensor {
    x.adaptive_avg_pool([2, 2]).flatten().linear("fc", 7)
}

/// The losses of several labels and of numbers, whose values are weighed, shifted and scaled by class.
#[test]
fn losses_of_values() {
    let weights = [0.5, 1.0, 2.0, 0.25, 4.0, 1.0, 3.0];
    let mean = [0.5, -1.0, 2.0, 0.0, 0.25, 1.0, -0.5];
    let losses: [PerSample; 4] = [
        PerSample::new(move |x, y| losses::binary_cross_entropy(x, y, Some(&weights))),
        PerSample::new(|x, y| losses::sigmoid_focal(x, y, Some(0.25), 1.5)),
        PerSample::new(|x, y| losses::asymmetric(x, y, losses::Asymmetric::default())),
        PerSample::new(move |x, y| losses::huber(x, losses::standardize(y, &mean, &weights), 0.5)),
    ];
    for (number, loss) in losses.into_iter().enumerate() {
        let (loss, target) = (Loss::Custom(loss), TargetKind::Values(7));
        let options = CompileOptions { loss, target, ..CompileOptions::new("pooled", 5, 9, 7) };
        let Some(plans) = compile(&pooled, &options) else { return };
        check(&format!("loss {number}"), &plans, 3, 2e-5);
    }
}

/// Weights of classes, with smoothing and mixtures.
#[test]
fn weights_of_classes() {
    let loss = Loss::CrossEntropy { smoothing: 0.1, weights: vec![0.5, 1.0, 2.0, 0.25, 4.0, 0.0, 3.0] };
    let options = CompileOptions { loss, mixed: true, ..CompileOptions::new("pooled", 5, 9, 7) };
    let Some(plans) = compile(&pooled, &options) else { return };
    check("weights of classes", &plans, 3, 2e-5);
}

#[test]
fn shards_that_synchronise_their_batch_norms() {
    let options = CompileOptions { shards: 3, sync_batch_norm: true, ..CompileOptions::new("residual", 4, 32, 7) };
    let Some(plans) = compile(&residual, &options) else { return };
    check("synchronised", &plans, 3, 2e-5);
}

/// ReLU and ReLU6, after a residual or not, whose channels are whole packets of 16 bytes in all precisions, in f32 alone, or in none.
fn gated(x: Tensor) -> Tensor {
    let block = |x: Tensor, name: &str, channels: usize| {
        let norm = |x: Tensor, layer: &str| {
            let name = format!("{name}.{layer}");
            x.conv2d(&name, Conv::new(channels, 3).padding(1).no_bias()).batch_norm(&format!("{name}.bn"))
        };
        let x = norm(x, "a").relu6();
        (norm(x.clone(), "b") + x).relu().checkpoint()
    };
    let x = block(block(block(x, "wide", 16), "narrow", 12), "odd", 7);
    x.flatten().linear("fc", 7)
}

#[test]
fn what_activations_passed() {
    for (precision, tolerance) in [(Precision::F32, 2e-5), (Precision::Bf16, 6e-2), (Precision::F16, 1e-2)] {
        for (shards, sync_batch_norm, freeze_statistics) in [(1, false, false), (3, true, false), (2, false, true)] {
            let options = CompileOptions {
                size: [11, 9],
                precision,
                shards,
                sync_batch_norm,
                freeze_statistics,
                recompute: if shards == 3 { Recompute::All } else { Recompute::Nothing },
                ..CompileOptions::new("gated", 5, 11, 7)
            };
            let Some(plans) = compile(&gated, &options) else { return };
            check(&format!("gated in {precision} of {shards}"), &plans, 1, tolerance);
        }
    }
}

#[test]
fn maps_in_bf16() {
    let options =
        CompileOptions { size: [37, 30], precision: Precision::Bf16, ..CompileOptions::new("residual", 5, 37, 7) };
    let Some(plans) = compile(&residual, &options) else { return };
    check("residual in bf16", &plans, 1, 3e-2);
}

/// ReLUs after biases, which engines compute with the convolution, and some that no engine does: of a window too large for the
/// emulation, of groups, of a result that is read elsewhere, and without a bias.
fn activated(x: Tensor) -> Tensor {
    let x = x.conv2d("conv1", Conv::new(9, 3).padding(1)).relu().conv2d("conv2", Conv::new(12, 3).stride(2)).relu();
    let x = x.conv2d("large", Conv::new(12, 8).padding(4)).relu().conv2d("grouped", Conv::new(12, 3).groups(3)).relu();
    let y = x.conv2d("twice", Conv::new(16, 1));
    let x = (y.clone().relu() + y).conv2d("no_bias", Conv::new(8, 3).no_bias()).relu();
    x.flatten().linear("fc", 7)
}

#[test]
fn convolutions_with_bias_and_relu() {
    let Some(device) = gpu() else { return };
    for (precision, tolerance) in [(Precision::F32, 2e-5), (Precision::Bf16, 6e-2), (Precision::F16, 4e-2)] {
        for shards in [1, 2] {
            let options =
                CompileOptions { size: [21, 18], precision, shards, ..CompileOptions::new("activated", 5, 21, 7) };
            let plans = device.target().compile(&activated, &options).unwrap();
            check(&format!("activated of {shards} in {precision}"), &plans, 1, tolerance);
            let hosting = Hosting::new(&plans, None).unwrap();
            let work = device.work(&plans, &hosting, Mode::Evaluate).unwrap().join("\n");
            let fused = 2 + usize::from(precision == Precision::F32);
            let groups = 6;
            let count = |what: &str| work.matches(what).count() / shards;
            assert_eq!((count(" with bias and relu "), count(" rectify_")), (fused, groups - fused), "{work}");
        }
    }
}

/// Features of odd numbers between linear layers, with what has them as operands, and an image's factors among them.
fn features(x: Tensor) -> Tensor {
    let x = x.conv2d("conv", Conv::new(9, 3).stride(2)).silu();
    let factors = x.clone().adaptive_avg_pool([1, 1]).flatten().linear("squeeze", 9).sigmoid();
    let x =
        (x * factors).flatten().linear("fc1", Linear::new(37).no_bias()).batch_norm("bn").silu().dropout("drop", 0.3);
    let y = x.clone().linear("fc2", 37).layer_norm("norm", 1e-6).gelu();
    (x + y).linear("fc3", 7)
}

#[test]
fn features_of_16_bits() {
    for (precision, tolerance) in [(Precision::F32, 2e-5), (Precision::Bf16, 4e-2), (Precision::F16, 6e-3)] {
        for (shards, loss) in [(1, Loss::default()), (3, Loss::Custom(PerSample::new(focal)))] {
            let options =
                CompileOptions { size: [13, 10], precision, shards, loss, ..CompileOptions::new("features", 5, 13, 7) };
            let Some(plans) = compile(&features, &options) else { return };
            check(&format!("features of {shards} in {precision}"), &plans, 1, tolerance);
        }
    }
}

/// All gradients of the first step as one vector.
fn first_gradients(program: &mut dyn Program, plans: &Plans) -> Vec<f64> {
    fill(program);
    set_scale(program);
    run(program, Mode::Train, &Batch::random(plans, 1), 1);
    gradients(plans).iter().flat_map(|name| program.store(name).unwrap()).collect()
}

/// The norm of the difference relative to that of `b`.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied())
}

/// Convolutions and linear layers between smooth functions: no value is close to where an activation or a maximum decides.
fn smooth(x: Tensor) -> Tensor {
    let x = x.conv2d("conv1", Conv::new(18, 3).padding(1)).batch_norm("bn1");
    let y = x.clone().conv2d("conv2", Conv::new(18, 3).padding(1).groups(2).no_bias()).batch_norm("bn2");
    let x = (x + y).avg_pool(Pool::new(2)).conv2d("conv3", Conv::new(33, 3).stride(2)).flatten();
    x.linear("fc1", 20).batch_norm("bn3").linear("fc2", 7)
}

/// Operands of matmuls are off by up to 2^-11 of their size. The reference rounds nothing.
#[test]
fn matmuls_in_tf32() {
    let Some(device) = gpu() else { return };
    let found = [Precision::F32, Precision::Tf32].map(|precision| {
        let options = CompileOptions { size: [13, 10], precision, ..CompileOptions::new("smooth", 6, 13, 7) };
        let plans = device.target().compile(&smooth, &options).unwrap();
        let mut reference = ReferenceProgram::new(plans.clone(), None).unwrap();
        let expected = first_gradients(&mut reference, &plans);
        distance(&first_gradients(&mut *device.compile(plans.clone(), None).unwrap(), &plans), &expected)
    });
    let [single, rounded] = found;
    assert!(single < 1e-5 && (3e-5..5e-3).contains(&rounded), "{found:?}");
}

/// Gradients are compared as they are summed: with the scale.
#[test]
fn maps_in_f16() {
    for shards in [1, 3] {
        let precision = Precision::F16;
        let sync_batch_norm = shards > 1;
        let clip_norm = Some(0.5);
        let options = CompileOptions {
            size: [37, 30],
            precision,
            shards,
            sync_batch_norm,
            clip_norm,
            ..CompileOptions::new("residual", 5, 37, 7)
        };
        let Some(plans) = compile(&residual, &options) else { return };
        check(&format!("residual of {shards} in f16"), &plans, 1, 4e-2);
    }
}

/// What f16 adds to the error of a step, between smooth functions. The reference rounds nothing.
#[test]
fn the_error_of_f16() {
    let Some(device) = gpu() else { return };
    let options =
        CompileOptions { size: [13, 10], precision: Precision::F16, ..CompileOptions::new("smooth", 6, 13, 7) };
    let plans = device.target().compile(&smooth, &options).unwrap();
    let expected = first_gradients(&mut ReferenceProgram::new(plans.clone(), None).unwrap(), &plans);
    let found = first_gradients(&mut *device.compile(plans.clone(), None).unwrap(), &plans);
    let error = distance(&found, &expected);
    assert!((1e-4..5e-3).contains(&error), "{error:e}");
}

#[test]
fn a_loss_of_functions() {
    let loss = Loss::Custom(PerSample::new(focal));
    let options = CompileOptions { loss, ..CompileOptions::new("residual", 4, 32, 7) };
    let Some(plans) = compile(&residual, &options) else { return };
    check("focal", &plans, 2, 2e-5);
}

#[test]
fn frozen_layers_adamw_and_averages() {
    let optimizer = Optimizer::AdamW(AdamW { betas: [0.9, 0.99], epsilon: 1e-4 });
    let groups = ParameterGroups::one(0.1);
    let freeze = Freeze::Patterns(vec!["conv1*".into(), "bn1*".into(), "layer1*".into()]);
    let average = Some(Averaging::Ema(0.9));
    let options = CompileOptions { freeze, optimizer, groups, average, ..CompileOptions::new("residual", 4, 32, 7) };
    let Some(plans) = compile(&residual, &options) else { return };
    check("frozen", &plans, 3, 2e-5);
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

/// Both round to the same values, except where a sum lies close to the midpoint between two: such a value may decide about a
/// maximum or an activation.
#[test]
fn any_order_of_layers_in_16_bits() {
    for (seed, precision) in (0..10).flat_map(|seed| [(seed, Precision::Bf16), (seed, Precision::F16)]) {
        let options =
            CompileOptions { size: [5, 4], allow_unused: true, precision, ..CompileOptions::new("random", 3, 5, 3) };
        let Some(plans) = compile(&|x: Tensor| random(x, seed), &options) else { return };
        let expected = first_gradients(&mut ReferenceProgram::rounding(plans.clone(), None).unwrap(), &plans);
        let found = first_gradients(&mut *gpu().unwrap().compile(plans.clone(), None).unwrap(), &plans);
        let error = distance(&found, &expected);
        assert!(error < 8e-2, "random {seed} in {precision}: gradients are off by {error:.2e}");
    }
}

/// An evaluation and a whole step of each of these models, from the same parameters on both devices.
fn check_zoo(models: &[Narrow]) {
    for &(name, tolerance, model) in models {
        let size = match name {
            "lenet" | "mlp" => 28,
            "alexnet" => 63,
            _ if name.ends_with("-cifar") => 16,
            _ if name.starts_with("vgg") => 32,
            _ if name.contains("patch14") => 70,
            _ => 64,
        };
        let options = CompileOptions::new(name, 4, size, 5);
        let Some(plans) = compile(&|x: Tensor| model(x, 5), &options) else { return };
        let Some(device) = gpu() else { return };
        let mut gpu = device.compile(plans.clone(), None).unwrap();
        let mut reference = ReferenceProgram::new(plans.clone(), None).unwrap();
        fill(&mut *gpu);
        fill(&mut reference);
        let batch = Batch::random(&plans, 1);
        for mode in [Mode::Evaluate, Mode::Train] {
            let a = run(&mut *gpu, mode, &batch, 1);
            let b = run(&mut reference, mode, &batch, 1);
            assert!((a.loss - b.loss).abs() <= 1e-3 * b.loss.abs().max(1.0), "{name} {mode:?}: {a:?} {b:?}");
        }
        assert_agree(name, &gradients(&plans), &mut *gpu, &mut reference, tolerance);
        // Among it is the optimiser's momentum, which is the gradient.
        assert_agree(&format!("{name} state"), &state(&plans), &mut *gpu, &mut reference, tolerance);
    }
}

/// Gradients of activations in an evaluation, and the rollout, whose tokens are not those of a batch.
#[test]
fn heatmaps() {
    let some = ["resnet18", "mobilenet_v3_small", "regnet_y_400mf", "convnext_atto", "vit_tiny_patch16_224", "lenet"];
    for &(name, _, model) in NARROW.iter().filter(|(name, ..)| some.contains(name)) {
        let Some(device) = gpu() else { return };
        let options = CompileOptions::new(name, 3, 64, 5);
        let plans = device.target().compile_heatmaps(&|x: Tensor| model(x, 5), &options).unwrap().plans;
        let mut gpu = device.compile(plans.clone(), None).unwrap();
        let mut reference = ReferenceProgram::new(plans.clone(), None).unwrap();
        fill(&mut *gpu);
        fill(&mut reference);
        let batch = Batch::random(&plans, 1);
        run(&mut *gpu, Mode::Evaluate, &batch, 1);
        run(&mut reference, Mode::Evaluate, &batch, 1);
        assert_agree(name, &["logits".to_owned()], &mut *gpu, &mut reference, 1e-4);
    }
}

#[test]
fn residual_networks_of_the_zoo() {
    check_zoo(&NARROW[..5]);
    check_zoo(&NARROW[10..15]);
}

#[test]
fn wide_and_grouped_networks_of_the_zoo() {
    check_zoo(&NARROW[5..10]);
}

#[test]
fn other_networks_of_the_zoo() {
    check_zoo(&NARROW[15..]);
    let names: Vec<&str> = NARROW.iter().map(|(name, ..)| *name).collect();
    assert_eq!(enmasse_models::models().iter().map(|model| model.name()).collect::<Vec<_>>(), names);
}

#[test]
fn a_teacher_that_is_imitated() {
    for (precision, tolerance) in [(Precision::F32, 2e-5), (Precision::Bf16, 6e-2), (Precision::F16, 1e-2)] {
        let loss = PerSample::new(|logits, teacher| losses::distillation(logits, teacher, 4.0));
        let mut teacher = Teacher::new("residual", 7, residual, loss);
        (teacher.mean, teacher.std, teacher.alpha) = (vec![0.5; 3], vec![0.25; 3], 0.75);
        let teacher = Some(teacher);
        let options = CompileOptions { size: [19, 22], precision, teacher, ..CompileOptions::new("modern", 5, 19, 7) };
        let Some(plans) = compile(&modern, &options) else { return };
        check(
            &format!("distillation in {precision}"),
            &plans,
            if precision == Precision::F32 { 3 } else { 1 },
            tolerance,
        );
    }
}
