//! Runs of a program: phases one by one, steps that fail, optimisers over several steps, and refused inputs.

use crate::common::{Batch, TO_GRADIENTS, program, state, submit, train};
use enmasse_device::{Device, DeviceError, HostBatch, Hosting, Memory, Program, StepInputs};
use enmasse_graph::optimizers::{AdamW, Custom, CustomOptimizer, Sgd, UpdateStep};
use enmasse_graph::{
    Arena, CompileOptions, Conv, Freeze, Loss, Mode, Node, Optimizer, ParameterGroups, PerSample, Phase, Pool,
    Precision, TargetKind, Tensor, compile, compile_evaluation,
};
use enmasse_reference::{Reference, ReferenceProgram};
use enmasse_tensor::Bf16;

fn net(x: Tensor) -> Tensor {
    let x = x.conv2d("conv", Conv::new(4, 3).no_bias()).batch_norm("bn").relu().max_pool(Pool::new(2));
    x.dropout("drop", 0.3).flatten().linear("fc", 3)
}

fn options(shards: usize) -> CompileOptions {
    CompileOptions { shards, ..CompileOptions::new("net", 2, 6, 3) }
}

#[test]
fn phases_one_by_one_give_the_same_bits_as_all_at_once() {
    for shards in [1, 3] {
        let mut whole = program(&net, &options(shards));
        let mut parts = program(&net, &options(shards));
        for step in 1..=3 {
            let batch = Batch::random(&whole, step);
            let expected = train(&mut whole, &batch, step, 0.1);
            // Later phases continue with the batch of the forward phase and ignore any other.
            let ticket = submit(&mut parts, Mode::Train, &[Phase::Forward], &batch, step, 0.1);
            let other = Batch::random(&parts, 99);
            for phase in Phase::ALL.into_iter().skip(1) {
                assert_eq!(submit(&mut parts, Mode::Train, &[phase], &other, step, 0.1), ticket);
            }
            assert_eq!(parts.metrics(ticket).unwrap(), expected);
            assert_eq!(state(&mut parts), state(&mut whole));
            for name in ["logits", "loss", "correct", "gradient.conv.weight", "gradient.fc.bias"] {
                assert_eq!(parts.store(name).unwrap(), whole.store(name).unwrap(), "{name}");
            }
        }
    }
}

/// The reference serves plans of any precision.
#[test]
fn the_precision_of_a_plan_changes_no_bit() {
    let run = |precision| {
        let mut program = program(&net, &CompileOptions { precision, ..options(2) });
        let metrics: Vec<_> = (1..=3)
            .map(|step| {
                let batch = Batch::random(&program, step);
                train(&mut program, &batch, step, 0.1)
            })
            .collect();
        let batch = Batch::random(&program, 4);
        submit(&mut program, Mode::Evaluate, &[Phase::Forward, Phase::Loss], &batch, 1, 0.0);
        (metrics, state(&mut program), program.store("logits").unwrap())
    };
    assert_eq!(run(Precision::F32), run(Precision::Bf16));
}

#[test]
fn the_rounding_reference_stores_maps_as_the_plan_says() {
    let net = |x: Tensor| x.conv2d("conv", Conv::new(3, 1).no_bias()).flatten().linear("fc", 3);
    let bf16 = |value: f64| f64::from(Bf16::from_f32(value as f32).to_f32());
    let bytes = [200, 37, 111];
    let pixel = |channel: usize| (f64::from(bytes[channel]) / 255.0 - 0.25) / 0.3;
    let check = |precision, rounds: bool, expected: &dyn Fn(usize) -> f64| {
        let (mean, std) = (vec![0.25; 3], vec![0.3; 3]);
        let options = CompileOptions { precision, mean, std, ..CompileOptions::new("net", 1, 1, 3) };
        let plans = compile_evaluation(&net, &options).unwrap();
        let program = if rounds { ReferenceProgram::rounding(plans, None) } else { ReferenceProgram::new(plans, None) };
        let mut program = program.unwrap();
        let diagonal = |value: f64| [value, 0.0, 0.0, 0.0, value, 0.0, 0.0, 0.0, value];
        program.load("conv.weight", &diagonal(1.001)).unwrap();
        // The classifier multiplies f32 by f32.
        program.load("fc.weight", &diagonal(1.001)).unwrap();
        let batch =
            HostBatch { images: bytes.to_vec(), labels: vec![0], sample_indices: vec![0], ..HostBatch::default() };
        let inputs = StepInputs::evaluation(batch.into());
        program.submit(Mode::Evaluate, &[Phase::Forward, Phase::Loss], &inputs).unwrap();
        for (channel, found) in program.store("logits").unwrap().into_iter().enumerate() {
            let expected = expected(channel) * 1.001;
            assert!((found - expected).abs() < 1e-6 * expected.abs(), "{precision} {rounds}: {found} {expected}");
        }
    };
    let exact = |channel| pixel(channel) * 1.001;
    check(Precision::F32, false, &exact);
    check(Precision::F32, true, &exact);
    check(Precision::Bf16, false, &exact);
    // 1.001 is 1 in bf16.
    check(Precision::Bf16, true, &|channel| bf16(pixel(channel)));
}

#[test]
fn the_loss_is_the_mean_over_the_global_batch() {
    let mut program = program(&|x: Tensor| x.flatten().linear("fc", 3), &options(3));
    let batch = Batch::random(&program, 0);
    let ticket = submit(&mut program, Mode::Train, &TO_GRADIENTS, &batch, 1, 0.0);
    let training = program.metrics(ticket).unwrap();
    let ticket = submit(&mut program, Mode::Evaluate, &[Phase::Forward, Phase::Loss], &batch, 1, 0.0);
    let evaluation = program.metrics(ticket).unwrap();
    // The factor is stored as f32.
    assert!((training.loss - evaluation.loss / 6.0).abs() < 1e-7, "{training:?} {evaluation:?}");
    assert_eq!(training.correct, evaluation.correct);
}

/// A batch that is not full has the loss and the gradients of its samples alone, however they are shared by the shards.
#[test]
fn a_batch_that_is_not_full_counts_by_its_samples() {
    let net = |x: Tensor| x.conv2d("conv", Conv::new(4, 3)).relu().flatten().linear("fc", 3);
    for empty in [&[5][..], &[4, 5], &[1, 3], &[0, 1, 3], &[1, 2, 3, 4, 5]] {
        let mut whole = program(&net, &CompileOptions { weighted_loss: true, ..options(3) });
        let mut batch = Batch::random(&whole, 0);
        let all = batch.clone();
        let samples: Vec<usize> = (0..6).filter(|place| !empty.contains(place)).collect();
        batch.labels = (0..6).map(|place| if empty.contains(&place) { -1 } else { place as i32 % 3 }).collect();
        batch.loss_weight = Some(6.0 / samples.len() as f32);

        let mut alone = program(&net, &CompileOptions { batch: samples.len(), ..options(1) });
        let pixels = all.images.len() / 6;
        let images = samples.iter().flat_map(|&place| &all.images[place * pixels..][..pixels]).copied().collect();
        let union = Batch {
            images,
            labels: samples.iter().map(|place| batch.labels[*place]).collect(),
            sample_indices: samples.iter().map(|place| all.sample_indices[*place]).collect(),
            loss_weight: None,
            ..all.clone()
        };
        let [found, expected] = [(&mut whole, &batch), (&mut alone, &union)].map(|(program, batch)| {
            let ticket = submit(program, Mode::Train, &TO_GRADIENTS, batch, 1, 0.0);
            let metrics = program.metrics(ticket).unwrap();
            let gradients = ["conv.weight", "conv.bias", "fc.weight", "fc.bias"]
                .map(|name| program.store(&format!("gradient.{name}")).unwrap());
            (metrics, gradients)
        });
        // Factors are stored as f32.
        assert!((found.0.loss - expected.0.loss).abs() < 1e-6, "{empty:?}: {found:?} {expected:?}");
        assert_eq!(found.0.correct, expected.0.correct);
        for (found, expected) in found.1.concat().into_iter().zip(expected.1.concat()) {
            assert!((found - expected).abs() < 1e-6, "{empty:?}: {found} {expected}");
        }
    }
}

/// With the weights of the last layer, only an image of zeros keeps its shard's loss finite.
#[test]
fn a_loss_that_is_not_finite_stops_the_step_and_names_the_shard() {
    let net = |x: Tensor| x.clone().batch_norm("bn").flatten().linear("side", 3) + x.flatten().linear("fc", 3);
    let options = CompileOptions { mean: vec![0.0; 3], std: vec![1.0; 3], ..options(3) };
    for (bad, expected) in [(0, Some(0)), (1, Some(0)), (2, Some(1)), (5, Some(2)), (6, None)] {
        let mut program = program(&net, &options);
        let weights = program.store("fc.weight").unwrap();
        program.load("fc.weight", &vec![1e308; weights.len()]).unwrap();
        let before = state(&mut program);
        let mut batch = Batch::random(&program, 0);
        for (sample, image) in batch.images.chunks_mut(6 * 6 * 3).enumerate() {
            image.fill(if sample == bad { 255 } else { 0 });
        }
        let ticket = submit(&mut program, Mode::Train, &Phase::ALL, &batch, 1, 0.1);
        match (program.metrics(ticket), expected) {
            (Err(DeviceError::NonFinite { shard, loss }), Some(expected)) => {
                assert_eq!(shard, expected, "sample {bad}");
                assert!(!loss.is_finite());
                // No later phase of the failed step runs either.
                submit(&mut program, Mode::Train, &[Phase::Update], &batch, 1, 0.1);
                assert_eq!(state(&mut program), before, "sample {bad}");
            }
            (Ok(metrics), None) => {
                assert!(metrics.loss.is_finite());
                assert_ne!(state(&mut program), before);
            }
            (result, expected) => panic!("sample {bad}: {result:?}, not {expected:?}"),
        }
        // The next step is not affected.
        program.load("fc.weight", &weights).unwrap();
        train(&mut program, &batch, 1, 0.1);
        assert_eq!(program.first_difference(), None);
    }
}

/// Checks each weight against the scalar rule `next(w, g, memory, step)`, with the gradients that the program computed.
fn check_optimizer(optimizer: Optimizer, weight_decay: f32, next: impl Fn(f64, f64, &mut [f64; 2], i32) -> f64) {
    let text = optimizer.to_string();
    let groups = ParameterGroups::one(weight_decay);
    let mut program = program(&net, &CompileOptions { optimizer, groups, ..options(2) });
    let names = ["conv.weight", "bn.weight", "bn.bias", "fc.weight", "fc.bias"];
    let mut expected: Vec<Vec<(f64, [f64; 2])>> =
        names.iter().map(|name| program.store(name).unwrap().into_iter().map(|w| (w, [0.0; 2])).collect()).collect();
    for step in 1..=5 {
        let batch = Batch::random(&program, step);
        train(&mut program, &batch, step, 0.125);
        for (name, expected) in names.iter().zip(&mut expected) {
            let gradient = program.store(&format!("gradient.{name}")).unwrap();
            let weights = program.store(name).unwrap();
            for (((w, memory), g), found) in expected.iter_mut().zip(gradient).zip(weights) {
                *w = next(*w, g, memory, step as i32);
                assert!((*w - found).abs() <= 1e-12, "{text} {name} step {step}: {found} is not {w}");
            }
        }
    }
}

#[test]
fn sgd_is_the_scalar_recurrence() {
    // f32 represents all factors exactly.
    let sgd = |momentum, nesterov| Optimizer::Sgd(Sgd { momentum, nesterov });
    check_optimizer(sgd(0.0, false), 0.0, |w, g, _, _| w - 0.125 * g);
    check_optimizer(sgd(0.0, false), 0.25, |w, g, _, _| w - 0.125 * (g + 0.25 * w));
    check_optimizer(sgd(0.875, false), 0.0, |w, g, memory, _| {
        memory[0] = 0.875 * memory[0] + g;
        w - 0.125 * memory[0]
    });
    check_optimizer(sgd(0.875, true), 0.25, |w, g, memory, _| {
        let g = g + 0.25 * w;
        memory[0] = 0.875 * memory[0] + g;
        w - 0.125 * (g + 0.875 * memory[0])
    });
}

#[test]
fn adamw_is_the_scalar_recurrence() {
    let optimizer = Optimizer::AdamW(AdamW { betas: [0.875, 0.75], epsilon: 0.0625 });
    check_optimizer(optimizer, 0.5, |w, g, memory, step| {
        memory[0] = 0.875 * memory[0] + 0.125 * g;
        memory[1] = 0.75 * memory[1] + 0.25 * g * g;
        let m = memory[0] / (1.0 - 0.875f64.powi(step));
        let v = memory[1] / (1.0 - 0.75f64.powi(step));
        w - 0.125 * 0.5 * w - 0.125 * m / (v.sqrt() + 0.0625)
    });
}

/// Lion as its paper has it (X. Chen et al., 2023), an optimiser of a program's own.
#[derive(Debug)]
struct Lion([f64; 2]);

impl CustomOptimizer for Lion {
    fn name(&self) -> &'static str {
        "lion"
    }

    fn state_names(&self) -> &'static [&'static str] {
        &["exp_avg"]
    }

    fn update(&self, step: &UpdateStep, weights: &mut [f64], gradients: &[f64], state: &mut [&mut [f64]]) {
        let Lion([beta1, beta2]) = *self;
        for ((w, g), m) in weights.iter_mut().zip(gradients).zip(state[0].iter_mut()) {
            let update = beta1 * *m + (1.0 - beta1) * g;
            let sign = if update == 0.0 { 0.0 } else { update.signum() };
            *w -= step.learning_rate * (sign + step.weight_decay * *w);
            *m = beta2 * *m + (1.0 - beta2) * g;
        }
    }
}

#[test]
fn lion_is_the_scalar_recurrence() {
    check_optimizer(Custom::new(Lion([0.875, 0.75])).into(), 0.5, |w, g, memory, _| {
        let update = 0.875 * memory[0] + 0.125 * g;
        memory[0] = 0.75 * memory[0] + 0.25 * g;
        let sign = f64::from(u8::from(update > 0.0)) - f64::from(u8::from(update < 0.0));
        w - 0.125 * sign - 0.125 * 0.5 * w
    });
}

#[test]
fn frozen_parameters_and_their_statistics_do_not_move() {
    let freeze = Freeze::Patterns(vec!["conv".into(), "bn".into()]);
    let mut program = program(&net, &CompileOptions { freeze, ..options(2) });
    let before = state(&mut program);
    let batch = Batch::random(&program, 0);
    train(&mut program, &batch, 1, 0.1);
    for ((name, before), (_, after)) in before.iter().zip(state(&mut program)) {
        assert_eq!(*before != after, name.contains("fc."), "{name}");
    }
    assert!(matches!(program.store("gradient.conv.weight"), Err(DeviceError::Name(_))));
}

/// With `allow_unused` a parameter that does not reach the loss has a zero gradient, so only weight decay changes it.
#[test]
fn unused_parameters_have_a_zero_gradient() {
    let net = |x: Tensor| {
        let _ = x.clone().flatten().linear("side", 3);
        x.flatten().linear("fc", 3)
    };
    let optimizer = Optimizer::Sgd(Sgd { momentum: 0.0, nesterov: false });
    let groups = ParameterGroups::one(0.5);
    for shards in [1, 2] {
        let mut program = program(
            &net,
            &CompileOptions {
                allow_unused: true,
                optimizer: optimizer.clone(),
                groups: groups.clone(),
                ..options(shards)
            },
        );
        let before = program.store("side.weight").unwrap();
        let batch = Batch::random(&program, 0);
        train(&mut program, &batch, 1, 0.5);
        let after = program.store("side.weight").unwrap();
        assert!(before.iter().zip(after).all(|(before, after)| (before * 0.75 - after).abs() < 1e-15));
        assert!(program.store("gradient.side.weight").unwrap().iter().all(|&g| g == 0.0));
    }
}

#[test]
fn an_mlp_learns_which_channel_is_brightest() {
    let net = |x: Tensor| x.flatten().linear("fc1", 16).relu().linear("fc2", 3);
    let mut program = program(&net, &CompileOptions { shards: 2, ..CompileOptions::new("mlp", 8, 4, 3) });
    let batch = |program: &ReferenceProgram, number: u64| {
        let mut batch = Batch::random(program, number);
        for (image, &label) in batch.images.chunks_mut(4 * 4 * 3).zip(&batch.labels) {
            image
                .iter_mut()
                .enumerate()
                .for_each(|(i, byte)| *byte = *byte / 2 + 50 * u8::from(i % 3 == label as usize));
        }
        batch
    };
    let start = batch(&program, 0);
    let first = train(&mut program, &start, 1, 0.02).loss;
    let last = (1..60).map(|step| {
        let batch = batch(&program, step);
        train(&mut program, &batch, step + 1, 0.02).loss
    });
    let last = last.last().unwrap();
    assert!(last < first / 4.0, "{first} to {last}");
    let unseen = batch(&program, 1000);
    let ticket = submit(&mut program, Mode::Evaluate, &[Phase::Forward, Phase::Loss], &unseen, 0, 0.0);
    assert!(program.metrics(ticket).unwrap().correct >= 15);
}

#[test]
fn the_device_makes_programs() {
    let plans = compile(&net, &options(2)).unwrap();
    let of = |arena: Arena| {
        let both = plans.train.iter().chain([&plans.evaluate]);
        let values = both.flat_map(|plan| plan.values.iter().zip(&plan.slots)).filter(|(_, slot)| slot.arena == arena);
        2 * 8 * values.map(|(value, _)| value.shape.elements()).sum::<usize>()
    };
    let state: usize = plans.state.iter().map(|tensor| 2 * 8 * tensor.shape.elements()).sum();
    let activations = of(Arena::Activations) + of(Arena::Input);
    let expected = Memory { state, gradients: of(Arena::Gradients), activations, scratch: 0, library: 0, staging: 0 };
    let hosting = Hosting::new(&plans, None).unwrap();
    assert_eq!(Reference.memory(&plans, &hosting).unwrap(), expected);
    let mut program = Reference.compile(plans, None).unwrap();
    // Parameters are zero; buffers have their initial values.
    assert_eq!(program.store("conv.weight").unwrap(), [0.0; 4 * 27]);
    assert_eq!(program.store("bn.weight").unwrap(), [0.0; 4]);
    assert_eq!(program.store("bn.running_mean").unwrap(), [0.0; 4]);
    assert_eq!(program.store("bn.running_var").unwrap(), [1.0; 4]);
    assert_eq!(program.store("optimizer.momentum_buffer.fc.bias").unwrap(), [0.0; 3]);
}

/// Names and order are PyTorch's: output channel before input channel before kernel.
#[test]
fn tensors_are_in_pytorchs_order() {
    let net = |x: Tensor| x.conv2d("conv", Conv::new(2, 6)).flatten().linear("fc", 3);
    let mut program = program(&net, &CompileOptions { mean: vec![0.0; 3], std: vec![1.0; 3], ..options(1) });
    let mut weight = vec![0.0; 2 * 3 * 36];
    weight[(3 + 2) * 36 + 7] = 3.0; // output 1, input 2, row 1, column 1
    program.load("conv.weight", &weight).unwrap();
    program.load("conv.bias", &[0.0; 2]).unwrap();
    program.load("fc.weight", &[1.0, 10.0, 2.0, 100.0, 4.0, 1.0]).unwrap();
    program.load("fc.bias", &[0.0; 3]).unwrap();
    assert_eq!(program.store("conv.weight").unwrap(), weight);
    let mut batch = Batch::random(&program, 0);
    batch.images.fill(0);
    batch.images[(6 + 1) * 3 + 2] = 255;
    submit(&mut program, Mode::Evaluate, &[Phase::Forward], &batch, 0, 0.0);
    assert_eq!(program.store("logits").unwrap(), [30.0, 300.0, 3.0, 0.0, 0.0, 0.0]);
    submit(&mut program, Mode::Train, &TO_GRADIENTS, &batch, 0, 0.0);
    let gradient = program.store("gradient.conv.weight").unwrap();
    let lit: Vec<usize> = (0..gradient.len()).filter(|&i| gradient[i] != 0.0).collect();
    assert_eq!(lit, [2 * 36 + 7, (3 + 2) * 36 + 7]);
}

#[test]
fn mismatched_batches_and_tensors_are_refused() {
    let mut program = program(&net, &options(2));
    let good = Batch::random(&program, 0);
    let mut check = |change: &dyn Fn(&mut Batch), expected: &str| {
        let mut batch = good.clone();
        change(&mut batch);
        let error = program.submit(Mode::Train, &Phase::ALL, &batch.inputs(1, 0.1)).unwrap_err().to_string();
        assert_eq!(error, format!("batch does not fit the plan: {expected}"));
    };
    check(&|b| b.images.truncate(7), "7 image bytes, but 4 samples take 432");
    check(&|b| b.labels.push(0), "5 labels, but 4 samples take 4");
    check(&|b| b.sample_indices.clear(), "0 sample indices, but 4 samples take 4");
    check(&|b| b.labels[2] = 3, "sample 2 has the label 3, which is not one of the 3 classes");

    check(&|b| b.lambdas.push(1.0), "1 lambdas, but 4 samples take 0");
    check(&|b| b.targets.push(1.0), "1 target values, but 4 samples take 0");
    check(&|b| b.loss_weight = Some(1.5), "its loss has the weight 1.5, but this plan is for full batches");
    check(&|b| b.loss_weight = Some(f32::NAN), "its loss has the weight NaN, but this plan is for full batches");
    let mut weighted = self::program(&net, &CompileOptions { weighted_loss: true, ..options(2) });
    for weight in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let batch = Batch { loss_weight: Some(weight), ..good.clone() };
        let error = weighted.submit(Mode::Train, &Phase::ALL, &batch.inputs(1, 0.1)).unwrap_err().to_string();
        assert!(error.ends_with(&format!("a weight of the loss of {weight} is out of range: above 0")), "{error}");
    }

    let loss = Loss::Custom(PerSample::new(|x: Tensor, y: Tensor| x.sum_classes() * y.sum_classes()));
    let mut of_values = self::program(&net, &CompileOptions { loss, target: TargetKind::Values(2), ..options(2) });
    let good = Batch::random(&of_values, 0);
    let mut check = |change: &dyn Fn(&mut Batch), expected: Result<(), &str>| {
        let mut batch = good.clone();
        change(&mut batch);
        let found = of_values.submit(Mode::Train, &Phase::ALL, &batch.inputs(1, 0.1)).map(|_| ());
        let expected = expected.map_err(|expected| format!("batch does not fit the plan: {expected}"));
        assert_eq!(found.map_err(|error| error.to_string()), expected);
    };
    check(&|b| b.targets.truncate(4), Err("4 target values, but 4 samples take 8"));
    check(&|b| b.targets[5] = f32::NAN, Err("sample 2 has the target NaN, which is not a finite number"));
    // Labels only say where samples are.
    check(&|b| b.labels[2] = 3, Ok(()));

    assert!(matches!(program.load("nobody", &[]), Err(DeviceError::Name(_))));
    assert!(matches!(program.load("gradient.fc.bias", &[0.0; 3]), Err(DeviceError::Name(_))));
    assert!(matches!(program.load("fc.bias", &[0.0]), Err(DeviceError::Size { expected: 3, found: 1, .. })));
    for name in ["nobody", "logits", "gradient.nobody"] {
        assert!(matches!(program.store(name), Err(DeviceError::Name(_))), "{name}");
    }
    assert!(program.store_shard(2, "fc.bias").is_err());
}

#[test]
fn instructions_with_operands_or_results_too_few_are_refused() {
    let check = |operation: &str, spoil: fn(&mut Node), expected: &str| {
        let mut plans = program(&net, &options(2)).plans().clone();
        let instructions = &mut plans.train.as_mut().unwrap().instructions;
        spoil(instructions.iter_mut().find(|node| node.op.name() == operation).unwrap());
        let mut program = ReferenceProgram::new(plans, None).unwrap();
        let inputs = Batch::random(&program, 0).inputs(1, 0.1);
        let error = program.submit(Mode::Train, &Phase::ALL, &inputs).unwrap_err().to_string();
        assert!(error.contains(operation) && error.ends_with(expected), "{error}");
    };
    check("linear", |node| node.inputs.truncate(1), "does not take 1 operands to 1 results");
    check("batch_norm_statistics", |node| node.outputs.truncate(1), "does not take 1 operands to 1 results");
    check("batch_norm_reduce", |node| node.inputs.truncate(4), "does not take 4 operands to 2 results");
    check("update", |node| node.inputs.truncate(4), "does not take 4 operands to 0 results");
}

#[test]
fn phases_and_tickets_out_of_order_are_refused() {
    let mut program = program(&net, &options(2));
    let batch = Batch::random(&program, 0);
    let refused = |program: &mut ReferenceProgram, mode, phases: &[Phase]| {
        let inputs: StepInputs = batch.inputs(1, 0.1);
        assert!(matches!(program.submit(mode, phases, &inputs), Err(DeviceError::Unsupported(_))), "{phases:?}");
    };
    refused(&mut program, Mode::Train, &[Phase::Loss]);
    refused(&mut program, Mode::Train, &[Phase::Forward, Phase::Backward]);
    let ticket = submit(&mut program, Mode::Train, &TO_GRADIENTS[..3], &batch, 1, 0.1);
    // The sums are in progress: no instruction may use a gradient, and there are no metrics yet.
    assert!(program.metrics(ticket).is_err());
    refused(&mut program, Mode::Train, &[Phase::Update]);
    refused(&mut program, Mode::Evaluate, &[Phase::Loss]);
    assert!(program.store("gradient.fc.bias").is_ok(), "reading a gradient waits for its sum");
    submit(&mut program, Mode::Train, &[Phase::Reduce], &batch, 1, 0.1);
    assert!(program.metrics(ticket).is_ok() && program.store("gradient.fc.bias").is_ok());
    // The step before the latest still has its metrics; older steps do not.
    train(&mut program, &batch, 2, 0.1);
    assert!(program.metrics(ticket).is_ok());
    train(&mut program, &batch, 3, 0.1);
    assert!(program.metrics(ticket).is_err());

    let evaluation = compile_evaluation(&net, &options(1)).unwrap();
    let mut program = ReferenceProgram::new(evaluation, None).unwrap();
    let batch = batch.shard(0, 2);
    assert!(program.submit(Mode::Train, &Phase::ALL, &batch.inputs(1, 0.1)).is_err());
    assert!(program.submit(Mode::Evaluate, &[Phase::Forward, Phase::Loss], &batch.inputs(1, 0.1)).is_ok());
}
