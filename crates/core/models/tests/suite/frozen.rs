//! Frozen layers cost nothing in backward and later phases, and keep every bit.

use std::collections::BTreeSet;

use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_device::{Device, HostBatch, Program, StepInputs};
use enmasse_graph::{
    Arena, CompileOptions, Freeze, Mode, Node, Op, Phase, Plan, Plans, Role, compile, pattern_matches,
};
use enmasse_models::{find, models};
use enmasse_tensor::RandomStream;

use crate::common::near;

const CLASSES: usize = 5;

fn plans(model: &str, shards: usize, sync_batch_norm: bool, freeze: Freeze) -> Plans {
    let model = find(model).unwrap();
    let options = CompileOptions {
        shards,
        sync_batch_norm,
        freeze,
        ..CompileOptions::new(model.name(), 2, near(64, &model), CLASSES)
    };
    compile(&|x| model.forward(x, CLASSES), &options).unwrap()
}

fn patterns(patterns: &[&str]) -> Freeze {
    Freeze::Patterns(patterns.iter().map(ToString::to_string).collect())
}

/// Layers with an instruction in a phase that `wanted` selects.
fn layers(plan: &Plan, phase: Phase, wanted: impl Fn(&Node) -> bool) -> BTreeSet<&str> {
    plan.phase(phase).iter().filter(|node| wanted(node)).map(|node| node.layer.as_str()).collect()
}

#[test]
fn freezing_all_but_the_classifier_trains_only_the_classifier() {
    for model in models() {
        let plans = plans(model.name(), 4, true, Freeze::AllButClassifier(Vec::new()));
        let classifier = plans.classifier().unwrap();
        let train = plans.train.as_ref().unwrap();
        let of_classifier = |name: &str| pattern_matches(classifier, name);
        let backward = layers(train, Phase::Backward, |node| !matches!(node.op, Op::AllReduceStart(_)));
        assert!(backward.iter().all(|layer| *layer == "loss" || of_classifier(layer)), "{} {backward:?}", model.name());
        let state = plans.state.iter().filter(|tensor| matches!(tensor.slot.arena, Arena::Optimizer(_)));
        let kept: Vec<&str> =
            state.filter_map(|tensor| tensor.name.strip_prefix("optimizer.momentum_buffer.")).collect();
        assert!(!kept.is_empty() && kept.into_iter().all(of_classifier), "{}", model.name());
        // Ranks exchange the gradients of the classifier, and four losses with the hits and the requests to stop.
        let metrics = (train.shards + 2).next_multiple_of(Plan::ALIGNMENT / 4);
        let exchanged: usize = train.buckets.iter().map(|bucket| bucket.len).sum();
        assert_eq!(exchanged, train.trainable + metrics, "{}", model.name());
        let collective = |node: &Node| matches!(node.op, Op::SyncStatistics(_) | Op::SyncSum(_));
        assert!(!train.instructions.iter().any(collective), "{}: SyncBatchNorm of what is frozen", model.name());
        let elements = |name: &str| plans.find(name).unwrap().shape.elements();
        if model.name() == "resnet18" {
            assert_eq!(train.trainable, elements("fc.weight") + elements("fc.bias").next_multiple_of(16));
        }
    }
}

#[test]
fn backward_ends_at_the_first_trained_layer() {
    let check = |freeze: Freeze, expected: &[&str]| {
        let plans = plans("resnet18", 1, false, freeze);
        let train = plans.train.as_ref().unwrap();
        let found = layers(train, Phase::Backward, |node| matches!(node.op, Op::Conv2dBackwardData(_)));
        let stages: BTreeSet<&str> = found.iter().map(|layer| &layer[..6]).collect();
        assert!(stages.iter().eq(expected), "{found:?}");
    };
    check(patterns(&[]), &["layer1", "layer2", "layer3", "layer4"]);
    // The first convolution after the frozen layers needs no gradient of its input; the other layers of layer3 do.
    check(patterns(&["conv1", "bn1", "layer1", "layer2"]), &["layer3", "layer4"]);
    // Trained layers before frozen ones get their gradient through them.
    check(patterns(&["layer1", "layer2"]), &["layer1", "layer2", "layer3", "layer4"]);
    check(Freeze::AllButClassifier(Vec::new()), &[]);

    let plans = plans("resnet18", 1, false, patterns(&["conv1", "bn1", "layer1", "layer2"]));
    let train = plans.train.as_ref().unwrap();
    let convolutions = layers(train, Phase::Backward, |node| matches!(node.op, Op::Conv2dBackwardData(_)));
    assert!(!convolutions.contains("layer3.0.conv1") && !convolutions.contains("layer3.0.downsample.0"));
    let gradients = train.values.iter().filter(|value| matches!(value.role, Role::Gradient { .. }));
    assert!(gradients.into_iter().all(|value| !value.name.contains("layer1") && !value.name.contains("layer2")));
}

#[test]
fn only_trained_norms_exchange_statistics() {
    let plans = plans("resnet18", 2, true, patterns(&["layer1", "layer2", "layer3.0.bn1"]));
    let train = plans.train.as_ref().unwrap();
    let found = layers(train, Phase::Forward, |node| matches!(node.op, Op::SyncStatistics(_)));
    let norms = plans.state.iter().filter_map(|tensor| tensor.name.strip_suffix(".running_mean"));
    let frozen = |name: &&str| name.starts_with("layer1") || name.starts_with("layer2") || *name == "layer3.0.bn1";
    assert_eq!(found, norms.filter(|name| !frozen(name)).collect());
}

/// The bits of all state before the first of three steps, and after each step.
pub fn train(plans: &Plans) -> Vec<Vec<(String, Vec<u64>)>> {
    let cpu = Cpu::new(CpuOptions { threads: 2, ..CpuOptions::default() }).unwrap();
    let mut program = cpu.compile(plans.clone(), None).unwrap();
    for tensor in plans.state.iter().filter(|tensor| tensor.slot.arena == Arena::Parameters) {
        let values = tensor.init.values(7, &tensor.name, 0..tensor.shape.elements());
        program.load(&tensor.name, &values.into_iter().map(f64::from).collect::<Vec<_>>()).unwrap();
    }
    let bits = |program: &mut dyn Program| {
        let mut of = |name: &String| program.store(name).unwrap().into_iter().map(f64::to_bits).collect();
        plans.state.iter().map(|tensor| (tensor.name.clone(), of(&tensor.name))).collect()
    };
    let mut history = vec![bits(&mut *program)];
    for step in 1..=3 {
        let mut stream = RandomStream::new(1, "frozen", 0, step);
        let pixels = plans.evaluate.shape(plans.evaluate.images).elements();
        let images: Vec<u8> = (0..pixels).map(|_| stream.next_u32() as u8).collect();
        let sample_indices = vec![2 * step, 2 * step + 1];
        let batch = HostBatch { images, labels: vec![1, 3], sample_indices, ..HostBatch::default() };
        let inputs = StepInputs { learning_rate: 0.01, optimizer_step: step, ..StepInputs::evaluation(batch.into()) };
        let ticket = program.submit(Mode::Train, &Phase::ALL, &inputs).unwrap();
        assert!(program.metrics(ticket).unwrap().loss.is_finite());
        history.push(bits(&mut *program));
    }
    history
}

/// The names of the state that the steps changed.
fn changed(plans: &Plans) -> BTreeSet<String> {
    let history = train(plans);
    let pairs = history[0].iter().zip(&history[3]);
    pairs.filter(|(before, after)| before != after).map(|((name, _), _)| name.clone()).collect()
}

#[test]
fn frozen_batch_norm_keeps_its_statistics() {
    let check = |model: &str, freeze: Freeze, is_frozen: &dyn Fn(&str) -> bool| {
        let plans = plans(model, 1, false, freeze);
        let found = changed(&plans);
        for tensor in &plans.state {
            let name = tensor.name.strip_prefix("optimizer.momentum_buffer.").unwrap_or(&tensor.name);
            assert_eq!(found.contains(&tensor.name), !is_frozen(name), "{model}: {}", tensor.name);
        }
    };
    check("resnet18", Freeze::AllButClassifier(Vec::new()), &|name| !name.starts_with("fc."));
    check("mobilenet_v2", Freeze::AllButClassifier(Vec::new()), &|name| !name.starts_with("classifier."));
    let first = ["conv1", "bn1", "layer1"];
    check("resnet18", patterns(&first), &|name| first.iter().any(|pattern| pattern_matches(pattern, name)));
    // A norm in the middle, between trained layers.
    check("resnet18", patterns(&["layer2.0.bn1"]), &|name| name.starts_with("layer2.0.bn1."));
    // Freezing only the bias is not enough: with a trained weight the statistics are updated.
    check("resnet18", patterns(&["bn1.bias"]), &|name| name == "bn1.bias");
}
