//! Convolutions with the batch norms after them, or before them, as one operation: the same bits as one after the other, near the
//! reference. In training with the statistics of batch norms: near the reference, with any options of plans.

use crate::common::models::{normalized, residual, smooth};
use crate::common::{Batch, assert_agree, fill, gradients, history, levels, on_some_ranks, program_with, state};
use enmasse_cpu::{Cpu, CpuOptions, Isa};
use enmasse_device::{Device, Program, StepMetrics};
use enmasse_graph::{
    Arena, Averaging, CompileOptions, Conv, Freeze, Graph, Mode, Op, Phase, Plan, Plans, Precision, Recompute, Target,
    Tensor, ValueId, fuse_activations, fuse_loads, fuse_statistics,
};
use enmasse_reference::{ReferenceProgram, aliasing_is_safe};

/// Every algorithm of convolutions, odd numbers of channels, unequal padding, and pixels that no tap meets.
fn every_algorithm(x: Tensor) -> Tensor {
    let norm = |x: Tensor, name: &str| x.batch_norm(&format!("{name}.bn"));
    let conv = |x: Tensor, name: &str, conv: Conv| norm(x.conv2d(name, conv.no_bias()), name);
    let x = conv(x, "stem", Conv::new(18, 3).stride(2).same()).relu6();
    let x = conv(x, "depthwise", Conv::new(18, 5).padding(2).groups(18)).relu6().checkpoint();
    let y = conv(x.clone(), "winograd", Conv::new(18, 3).padding(1)).relu();
    let x = (conv(y, "project", Conv::new(18, 1)) + x).relu().checkpoint();
    let y = conv(x.clone(), "grouped", Conv::new(18, 3).padding(1).groups(2)) + x;
    let y = conv(y, "bordered", Conv::new(35, 1).padding(1)).relu();
    let y = conv(y, "narrow", Conv::new(64, 3).padding_sides([[0, 1], [2, 0]]).groups(1));
    conv(y, "pairs", Conv::new(64, 3).padding(1).groups(16)).relu().adaptive_avg_pool([1, 1]).flatten().linear("fc", 7)
}

/// Convolutions that are computed strip by strip: an inverted residual, and parts of one, with strides, dilation, unequal padding and odd
/// numbers of channels.
fn chained(x: Tensor) -> Tensor {
    let conv = |x: Tensor, name: &str, conv: Conv| x.conv2d(name, conv.no_bias()).batch_norm(&format!("{name}.bn"));
    let x = conv(x, "stem", Conv::new(18, 3).padding(1)).relu();
    let y = conv(x.clone(), "expand1", Conv::new(50, 1)).relu6();
    let y = conv(y, "deep1", Conv::new(50, 3).padding(1).groups(50)).relu6();
    let x = (conv(y, "project1", Conv::new(18, 1)) + x).relu().checkpoint();
    let y = conv(x, "expand2", Conv::new(35, 1)).relu();
    let y = conv(y, "deep2", Conv::new(35, 5).stride(2).padding(2).groups(35)).relu();
    let x = conv(y, "project2", Conv::new(17, 1));
    let x = conv(x, "deep3", Conv::new(17, 3).dilation(2).padding(2).groups(17));
    let x = conv(x, "project3", Conv::new(24, 1)).relu().checkpoint();
    let x = conv(x, "expand4", Conv::new(40, 1)).relu6();
    let x = conv(x, "deep4", Conv::new(40, 3).padding_sides([[0, 1], [2, 0]]).groups(40));
    let y = conv(x.clone(), "read twice", Conv::new(40, 1)) + x;
    y.adaptive_avg_pool([1, 1]).flatten().linear("fc", 7)
}

/// Values between the convolutions of chains.
fn in_cache(plan: &Plan) -> usize {
    plan.slots.iter().filter(|slot| slot.arena == Arena::Cache).count()
}

/// A target whose batch norms are apart from the convolutions.
fn layer_by_layer<'a>() -> Target<'a> {
    Target { fuse: Box::new(|graph, keep, _| fuse_activations(graph, keep)), ..Target::default() }
}

fn fused(plans: &Plans) -> usize {
    plans.evaluate.instructions.iter().filter(|node| matches!(node.op, Op::Conv2dBatchNorm(_))).count()
}

fn evaluate(program: &mut dyn Program, batch: &Batch) -> StepMetrics {
    let ticket = program.submit(Mode::Evaluate, &Phase::ALL, &batch.inputs(1)).unwrap();
    program.metrics(ticket).unwrap()
}

fn check(name: &str, model: fn(Tensor) -> Tensor, size: [usize; 2], [convolutions, between]: [usize; 2]) {
    for (precision, tolerance) in [(Precision::F32, 1e-4), (Precision::Bf16, 5e-2)] {
        let options = CompileOptions { size, precision, ..CompileOptions::new(name, 3, 1, 7) };
        let apart = layer_by_layer().compile(&model, &options).unwrap();
        let together = Cpu::new(CpuOptions::default()).unwrap().target().compile(&model, &options).unwrap();
        assert_eq!([fused(&apart), fused(&together)], [0, convolutions], "{name}");
        assert_eq!([&apart, &together].map(|plans| in_cache(&plans.evaluate)), [0, between], "{name}");
        assert_eq!(aliasing_is_safe(&together.evaluate).map_err(|error| error.to_string()), Ok(()));
        let whole = CompileOptions { fuse: false, ..options };
        let plain = Cpu::new(CpuOptions::default()).unwrap().target().compile(&model, &whole).unwrap();
        assert_eq!(fused(&plain), 0);
        let mut batch = Batch::random(&apart, 1);
        batch.for_evaluation();
        let mut reference = ReferenceProgram::rounding(together.clone(), None).unwrap();
        fill(&mut reference);
        evaluate(&mut reference, &batch);
        for (isa, exact) in levels().flat_map(|isa| [(isa, true), (isa, false)]) {
            let bits = |plans: &Plans, threads| {
                let mut program = run(plans, threads, isa, exact, &batch);
                program.store("logits").unwrap().iter().map(|value| value.to_bits()).collect::<Vec<_>>()
            };
            let expected = bits(&apart, 1);
            for threads in [1, 3] {
                assert!(bits(&together, threads) == expected, "{name} {precision} {isa}, {threads} threads");
            }
            let mut program = run(&together, 2, isa, exact, &batch);
            let what = format!("{name} {precision} {isa}");
            assert_agree(&what, &["logits".into()], &mut *program, &mut reference, tolerance);
        }
    }
}

fn run(plans: &Plans, threads: usize, isa: Isa, exact: bool, batch: &Batch) -> Box<dyn Program> {
    let options = CpuOptions { threads, isa: Some(isa), exact, ..CpuOptions::default() };
    let mut program = program_with(plans, options, None);
    evaluate(&mut *program, batch);
    program
}

fn train(program: &mut dyn Program, batches: u64) {
    for step in 1..=batches {
        let batch = Batch::random(program.plans(), step);
        let ticket = program.submit(Mode::Train, &Phase::ALL, &batch.inputs(step)).unwrap();
        program.metrics(ticket).unwrap();
    }
}

/// Trains with the batch norms of `loads` convolutions in their loads, and of as many gradients.
fn check_loads(name: &str, model: impl Fn(Tensor) -> Tensor, options: CompileOptions, loads: usize) {
    for precision in [Precision::F32, Precision::Bf16] {
        let options = CompileOptions { precision, ..options.clone() };
        let without_loads = |graph: &mut Graph, keep: &[ValueId], _| {
            fuse_activations(graph, keep);
            fuse_statistics(graph);
        };
        let apart = Target { fuse: Box::new(without_loads), ..Target::default() }.compile(&model, &options).unwrap();
        let together = Cpu::new(CpuOptions::default()).unwrap().target().compile(&model, &options).unwrap();
        let count = |plans: &Plans, phase, is: fn(&Op) -> bool| {
            plans.train.as_ref().unwrap().phase(phase).iter().filter(|node| is(&node.op)).count()
        };
        let gradient = |op: &Op| matches!(op, Op::BatchNormConv2dBackwardWeights(_));
        assert_eq!(count(&together, Phase::Forward, |op| matches!(op, Op::BatchNormConv2d(_))), loads, "{name}");
        assert_eq!(count(&together, Phase::Backward, gradient), loads, "{name}");
        let [before, after] =
            [&apart, &together].map(|plans| count(plans, Phase::Forward, |op| matches!(op, Op::BatchNormNormalize(_))));
        assert_eq!(before, after + loads, "{name}");
        let names: Vec<String> = gradients(&apart).into_iter().chain(state(&apart)).collect();
        for (isa, exact) in levels().flat_map(|isa| [(isa, true), (isa, false)]) {
            let bits = |plans: &Plans, threads| {
                let options = CpuOptions { threads, isa: Some(isa), exact, ..CpuOptions::default() };
                let mut program = program_with(plans, options, None);
                train(&mut *program, 2);
                let bits = |name: &String| program.store(name).unwrap().iter().map(|value| value.to_bits()).collect();
                names.iter().map(bits).collect::<Vec<Vec<_>>>()
            };
            let expected = bits(&apart, 1);
            for threads in [1, 3] {
                for (tensor, (found, expected)) in names.iter().zip(bits(&together, threads).iter().zip(&expected)) {
                    assert!(found == expected, "{name} {precision} {isa}, {threads} threads: {tensor}");
                }
            }
        }
        let [expected, found] = [&apart, &together].map(|plans| {
            let mut reference = ReferenceProgram::rounding(plans.clone(), None).unwrap();
            fill(&mut reference);
            train(&mut reference, 2);
            names.iter().map(|name| reference.store(name).unwrap()).collect::<Vec<_>>()
        });
        assert!(found == expected, "{name} {precision}: the reference computes one after the other");
    }
}

#[test]
fn batch_norms_in_the_loads_of_convolutions() {
    let options = |size| CompileOptions { size, ..CompileOptions::new("net", 3, 1, 7) };
    check_loads("normalized", normalized, options([21, 18]), 9);
    check_loads("residual", residual, options([37, 30]), 3);
    check_loads("smooth", smooth, options([21, 18]), 5);
    check_loads("frozen", residual, CompileOptions { freeze_statistics: true, ..options([37, 30]) }, 3);
    let shards = CompileOptions { sync_batch_norm: true, shards: 2, ..options([15, 18]) };
    check_loads("synchronized", normalized, shards.clone(), 9);
    check_loads("synchronized smooth", smooth, shards, 5);
    let marked = |x: Tensor| {
        let x = x.conv2d("first", Conv::new(5, 3)).batch_norm("first.bn").relu().checkpoint();
        normalized(x.conv2d("second", Conv::new(6, 3)).batch_norm("second.bn")).checkpoint()
    };
    check_loads("marked", marked, options([21, 18]), 11);
    let checkpoints = CompileOptions { recompute: Recompute::All, ..options([21, 18]) };
    check_loads("checkpoints", marked, checkpoints, 10);
}

#[test]
fn convolutions_with_their_batch_norms() {
    check("every algorithm", every_algorithm, [21, 18], [8, 0]);
    check("residual", residual, [37, 30], [9, 0]);
    check("chained", chained, [21, 18], [12, 6]);
    check("chained", chained, [9, 40], [12, 6]);
    check("smooth", smooth, [21, 18], [9, 1]);
}

#[test]
fn layers_before_trained_ones_are_as_in_evaluation() {
    let check = |frozen: &[&str], expected: [usize; 2]| {
        for precision in [Precision::F32, Precision::Bf16] {
            let freeze = Freeze::Patterns(frozen.iter().map(ToString::to_string).collect());
            let options = CompileOptions { size: [21, 18], precision, freeze, ..CompileOptions::new("net", 3, 1, 7) };
            let layer_by_layer = |graph: &mut Graph, keep: &[ValueId], _| {
                fuse_activations(graph, keep);
                fuse_loads(graph, keep);
                fuse_statistics(graph);
            };
            let apart = Target { fuse: Box::new(layer_by_layer), ..Target::default() };
            let cpu = Cpu::new(CpuOptions::default()).unwrap();
            let together = cpu.target();
            let again = CompileOptions { recompute: Recompute::All, ..options.clone() };
            let [apart, together, again] = [(apart, &options), (cpu.target(), &options), (together, &again)]
                .map(|(target, options)| target.compile(&chained, options).unwrap());
            let plan = together.train.as_ref().unwrap();
            let convolutions = plan.instructions.iter().filter(|node| matches!(node.op, Op::Conv2dBatchNorm(_)));
            assert_eq!([convolutions.count(), in_cache(plan)], expected, "{frozen:?}");
            let [expected, found, again] = [&apart, &together, &again].map(|plans| {
                assert_eq!(aliasing_is_safe(plans.train.as_ref().unwrap()).map_err(|error| error.to_string()), Ok(()));
                on_some_ranks(plans, 1, |mut program, local| history(&mut *program, local, 1..=2)).remove(0)
            });
            assert!(found == expected, "{frozen:?} {precision}: other bits than layer by layer");
            assert!(again == expected, "{frozen:?} {precision}: what is computed again has other bits");
        }
    };
    check(&["stem*", "*1.*", "*2.*", "deep3*"], [8, 4]);
    check(&["stem*", "*1.*", "*2.*", "*3.*"], [9, 5]);
    // What is after a trained layer needs gradients.
    check(&["*1.*", "*2.*"], [0, 0]);
}

/// Convolutions that have the statistics of their results.
fn counted(plans: &Plans) -> usize {
    let forward = plans.train.as_ref().unwrap().phase(Phase::Forward);
    forward.iter().filter(|node| node.op.may_give_statistics() && node.outputs.len() == 3).count()
}

fn check_training(what: &str, model: fn(Tensor) -> Tensor, options: &CompileOptions, expected: usize) {
    let target_of = Cpu::new(CpuOptions::default()).unwrap();
    let [apart, together] =
        [layer_by_layer(), target_of.target()].map(|target| target.compile(&model, options).unwrap());
    assert_eq!([counted(&apart), counted(&together)], [0, expected], "{what}");
    let whole = CompileOptions { fuse: false, ..options.clone() };
    assert_eq!(counted(&target_of.target().compile(&model, &whole).unwrap()), 0, "{what}");

    let [mut plain, mut reference] = [apart, together.clone()].map(|plans| {
        let mut program = ReferenceProgram::rounding(plans, None).unwrap();
        fill(&mut program);
        program
    });
    let local = 0..options.shards;
    let [one, other] = [&mut plain, &mut reference].map(|program| history(program, local.clone(), 1..=1));
    assert!(one == other, "{what}: the reference tells the plans apart");
    for (isa, exact) in levels().flat_map(|isa| [(isa, true), (isa, false)]) {
        let run = |threads| {
            let options = CpuOptions { threads, isa: Some(isa), exact, ..CpuOptions::default() };
            let mut program = program_with(&together, options, None);
            let history = history(&mut *program, local.clone(), 1..=1);
            (program, history)
        };
        let (mut program, bits) = run(1);
        assert!(run(3).1 == bits, "{what} on {isa}: three threads give other bits");
        // Where an activation's input is near its limit, rounding decides what it lets pass, with and without fusion: that is most of
        // the error in f32. Each sum alone is compared with its terms in the tests of kernels.
        let tolerance = if options.precision == Precision::F32 { 3e-2 } else { 0.5 };
        assert_agree(&format!("{what} on {isa}"), &gradients(&together), &mut *program, &mut reference, tolerance);
    }
    let alone = on_some_ranks(&together, 1, |mut program, local| history(&mut *program, local, 1..=3)).remove(0);
    for found in on_some_ranks(&together, options.shards, |mut program, local| history(&mut *program, local, 1..=3)) {
        assert!(found == alone, "{what}: ranks give other bits");
    }
    let again = CompileOptions { recompute: Recompute::All, ..options.clone() };
    if let Ok(again) = target_of.target().compile(&model, &again) {
        let found = on_some_ranks(&again, 1, |mut program, local| history(&mut *program, local, 1..=3)).remove(0);
        assert!(found == alone, "{what}: what is computed again has other bits");
    }
}

#[test]
fn training_with_statistics_of_convolutions() {
    let usual = |precision| CompileOptions { size: [21, 18], precision, ..CompileOptions::new("net", 3, 1, 7) };
    for precision in [Precision::F32, Precision::Bf16] {
        let check = |what: &str, options: CompileOptions, expected: usize| {
            check_training(&format!("{what} in {precision}"), every_algorithm, &options, expected);
        };
        check("plain", usual(precision), 8);
        check("shards", CompileOptions { shards: 3, average: Some(Averaging::Ema(0.9)), ..usual(precision) }, 8);
        check("sync", CompileOptions { shards: 2, sync_batch_norm: true, ..usual(precision) }, 8);
        let freeze = Freeze::Patterns(vec!["stem*".into(), "winograd.*".into(), "pairs.weight".into()]);
        check("frozen", CompileOptions { freeze, clip_norm: Some(1.0), ..usual(precision) }, 6);
        check("kept", CompileOptions { freeze_statistics: true, ..usual(precision) }, 0);
        let check = |what: &str, options: CompileOptions, expected: usize| {
            check_training(&format!("smooth {what} in {precision}"), smooth, &options, expected);
        };
        check("plain", usual(precision), 9);
        check("sync", CompileOptions { shards: 2, sync_batch_norm: true, ..usual(precision) }, 9);
        check("kept", CompileOptions { freeze_statistics: true, ..usual(precision) }, 0);
    }
    check_training("residual", residual, &CompileOptions { size: [37, 30], ..CompileOptions::new("net", 3, 1, 7) }, 9);
}

/// The gradients of a plan whose batch norms apply smooth activations, against those of one where each is a pass of its own.
#[test]
fn smooth_activations_of_batch_norms() {
    let check = |what: &str, options: &CompileOptions| {
        let cpu = Cpu::new(CpuOptions::default()).unwrap();
        let apart = CompileOptions { fuse: false, ..options.clone() };
        let [apart, together] = [&apart, options].map(|options| cpu.target().compile(&smooth, options).unwrap());
        let passes = |plans: &Plans| {
            let nodes = &plans.train.as_ref().unwrap().instructions;
            nodes.iter().filter(|node| matches!(node.op, Op::Activation(_) | Op::ActivationBackward(_))).count()
        };
        assert_eq!([passes(&apart), passes(&together)], [18, 0], "{what}");
        let [apart, together] = [apart, together].map(|plans| {
            let mut reference = ReferenceProgram::new(plans, None).unwrap();
            fill(&mut reference);
            train(&mut reference, 2);
            gradients(reference.plans()).iter().map(|name| reference.store(name).unwrap()).collect::<Vec<_>>()
        });
        let pairs = apart.iter().flatten().zip(together.iter().flatten());
        assert!(pairs.clone().count() > 10_000 && pairs.clone().any(|(apart, _)| *apart != 0.0), "{what}");
        for (apart, together) in pairs {
            assert!((apart - together).abs() <= 1e-12 * apart.abs().max(1e-3), "{what}: {apart} {together}");
        }
    };
    let options = CompileOptions { size: [21, 18], ..CompileOptions::new("smooth", 3, 1, 7) };
    check("plain", &options);
    check("kept", &CompileOptions { freeze_statistics: true, ..options.clone() });
    check("sync", &CompileOptions { shards: 2, sync_batch_norm: true, ..options });
}
