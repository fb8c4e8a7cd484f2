//! Models in stages: every stage has the bits that one rank has with as many shards.

use std::collections::BTreeMap;
use std::ops::Range;
use std::thread;

use enmasse_comm::Group;
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_device::{Device, HostBatch, Program, RankStage, StepInputs, StepMetrics};
use enmasse_graph::{
    Activation, CompileOptions, Conv, Metric, Mode, Phase, Plans, Precision, StageCut, StageSchedule, Tensor,
};
use enmasse_reference::{Reference, RoundingReference, aliasing_is_safe};
use proptest::prelude::*;

use crate::common::{fill, samples_of};

const SIZE: usize = 8;
/// Samples per shard.
const BATCH: usize = 3;
const CLASSES: usize = 5;
const STEPS: u64 = 2;
const CHANNELS: usize = 6;

/// A piece of a random model.
#[derive(Clone, Copy, Debug)]
enum Block {
    /// Convolution, batch norm and an activation.
    Norm(Activation),
    /// The same with a shortcut.
    Residual,
    /// A convolution with a bias.
    Plain,
    Dropout,
}

fn block() -> impl Strategy<Value = Block> {
    prop_oneof![
        Just(Block::Norm(Activation::Relu)),
        Just(Block::Norm(Activation::Silu)),
        Just(Block::Residual),
        Just(Block::Plain),
        Just(Block::Dropout),
    ]
}

/// A model of parts `a`, `b` and `c`, of which each begins with a convolution, and a head. What `a` gives may be added again in `c`.
#[derive(Clone, Debug)]
struct Net {
    parts: Vec<Vec<Block>>,
    skips: bool,
}

impl Net {
    fn forward(&self, mut x: Tensor) -> Tensor {
        let conv = |x: Tensor, name: &str| x.conv2d(name, Conv::new(CHANNELS, 3).padding(1).no_bias());
        let mut first = None;
        for (part, blocks) in ["a", "b", "c"].into_iter().zip(&self.parts) {
            x = conv(x, &format!("{part}.first"));
            for (number, block) in blocks.iter().enumerate() {
                let name = format!("{part}.{number}");
                x = match block {
                    Block::Norm(activation) => {
                        let x = conv(x, &name).batch_norm(&format!("{name}.bn"));
                        if *activation == Activation::Relu { x.relu() } else { x.silu() }
                    }
                    Block::Residual => {
                        let y = conv(x.clone(), &name).batch_norm(&format!("{name}.bn"));
                        (y + x).relu()
                    }
                    Block::Plain => x.conv2d(&name, Conv::new(CHANNELS, 3).padding(1)).relu(),
                    Block::Dropout => x.dropout(&name, 0.3),
                };
            }
            match &first {
                None => first = Some(x.clone()),
                Some(first) if part == "c" && self.skips => x = x + first.clone(),
                Some(_) => {}
            }
        }
        x.adaptive_avg_pool([2, 2]).flatten().linear("fc", CLASSES)
    }
}

fn net() -> impl Strategy<Value = Net> {
    (prop::collection::vec(prop::collection::vec(block(), 1..3), 3), any::<bool>())
        .prop_map(|(parts, skips)| Net { parts, skips })
}

fn plans(device: &dyn Device, net: &Net, shards: usize, precision: Precision, stage: Option<StageCut>) -> Plans {
    let options = CompileOptions {
        shards,
        stage,
        precision,
        weighted_loss: true,
        metrics: vec![Metric::Top(2)],
        ..CompileOptions::new("net", BATCH, SIZE, CLASSES)
    };
    device.target().compile(&|x| net.forward(x), &options).unwrap()
}

/// The inputs of the shards that a program hosts.
fn inputs(step: u64, shards: Range<usize>) -> StepInputs {
    let batch = HostBatch { loss_weight: Some(1.25), ..samples_of(step, shards, [BATCH, SIZE, CLASSES]) };
    StepInputs { learning_rate: 0.05, optimizer_step: step, ..StepInputs::evaluation(batch.into()) }
}

/// What a rank has after some steps: the metrics of training, the results of an evaluation, and its state.
#[derive(Debug)]
struct Seen {
    training: Vec<StepMetrics>,
    evaluation: StepMetrics,
    logits: Vec<f64>,
    state: BTreeMap<String, Vec<f64>>,
}

fn train(program: &mut dyn Program, shards: Range<usize>) -> Seen {
    fill(program);
    let step = |step| {
        let ticket = program.submit(Mode::Train, &Phase::ALL, &inputs(step, shards.clone())).unwrap();
        program.metrics(ticket).unwrap()
    };
    let training = (1..=STEPS).map(step).collect();
    let batch = StepInputs::evaluation(HostBatch { loss_weight: None, ..batch_of(&inputs(9, shards)) }.into());
    let ticket = program.submit(Mode::Evaluate, &[Phase::Forward, Phase::Loss], &batch).unwrap();
    let evaluation = program.metrics(ticket).unwrap();
    let logits = program.store("logits").unwrap();
    let names: Vec<String> = program.plans().state.iter().map(|tensor| tensor.name.clone()).collect();
    let state = names.into_iter().map(|name| (name.clone(), program.store(&name).unwrap())).collect();
    Seen { training, evaluation, logits, state }
}

fn batch_of(inputs: &StepInputs) -> HostBatch {
    let batch = &inputs.batch;
    HostBatch {
        images: batch.images().to_vec(),
        labels: batch.labels().to_vec(),
        sample_indices: batch.sample_indices().to_vec(),
        ..HostBatch::default()
    }
}

/// Each rank of stages that begin at `begins`, with so many replicas.
fn staged(
    device: &dyn Device,
    net: &Net,
    begins: &[&str],
    [micro_batches, replicas]: [usize; 2],
    schedule: StageSchedule,
    precision: Precision,
) -> Vec<Seen> {
    let stages = begins.len() + 1;
    let shards = micro_batches * replicas;
    let rank = |group: Group| {
        let place = RankStage::new(group.rank(), group.world_size(), stages).unwrap();
        let begins = begins.iter().map(|&name| name.to_owned()).collect();
        let cut = StageCut { begins, index: place.stage, micro_batches, schedule };
        let plans = plans(device, net, shards, precision, Some(cut));
        let train_plan = plans.train.as_ref().unwrap();
        [train_plan, &plans.evaluate].into_iter().for_each(|plan| aliasing_is_safe(plan).unwrap());
        let local = place.replica * micro_batches..(place.replica + 1) * micro_batches;
        train(device.compile(plans, Some(group)).unwrap().as_mut(), local)
    };
    let groups = Group::threads(stages * replicas).unwrap();
    thread::scope(|scope| {
        let threads: Vec<_> = groups.into_iter().map(|group| scope.spawn(|| rank(group))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn check(
    device: &dyn Device,
    net: &Net,
    begins: &[&str],
    sizes: [usize; 2],
    schedule: StageSchedule,
    precision: Precision,
) {
    let [micro_batches, replicas] = sizes;
    let shards = micro_batches * replicas;
    let whole = plans(device, net, shards, precision, None);
    let expected = train(device.compile(whole, None).unwrap().as_mut(), 0..shards);
    let found = staged(device, net, begins, sizes, schedule, precision);
    let what = format!("{} {begins:?} {sizes:?} {schedule} {net:?}", device.name());
    let mut seen = BTreeMap::new();
    for rank in &found {
        assert_eq!(rank.training, expected.training, "{what}");
        assert!(rank.state.len() < expected.state.len(), "{what}");
        for (name, values) in &rank.state {
            assert_eq!(values, &expected.state[name], "{name} of {what}");
            seen.insert(name, ());
        }
    }
    assert!(seen.into_keys().eq(expected.state.keys()), "{what}");
    let last = &found[found.len() - replicas..];
    let logits: Vec<f64> = last.iter().flat_map(|rank| rank.logits.iter().copied()).collect();
    assert_eq!(logits, expected.logits, "{what}");
    let correct: u64 = found.iter().map(|rank| rank.evaluation.correct).sum();
    assert_eq!(correct, expected.evaluation.correct, "{what}");
    if replicas == 1 {
        assert_eq!(last[0].evaluation, expected.evaluation, "{what}");
    }
}

fn cpu(threads: usize) -> Cpu {
    Cpu::new(CpuOptions { threads, ..CpuOptions::default() }).unwrap()
}

fn schedule() -> impl Strategy<Value = StageSchedule> {
    prop_oneof![Just(StageSchedule::GPipe), Just(StageSchedule::OneForwardOneBackward)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn stages_have_the_bits_of_the_whole_model(
        net in net(),
        begins in prop::sample::select(vec![&["b"][..], &["c"], &["b", "c"], &["b.first", "fc"]]),
        micro_batches in 1usize..=5,
        replicas in 1usize..=2,
        schedule in schedule(),
    ) {
        let sizes = [micro_batches, replicas];
        check(&Reference, &net, begins, sizes, schedule, Precision::F32);
        check(&cpu(1), &net, begins, sizes, schedule, Precision::F32);
    }

    #[test]
    fn stages_of_bf16_have_the_bits_of_the_whole_model(net in net(), micro_batches in 1usize..=3, schedule in schedule()) {
        let sizes = [micro_batches, 1];
        check(&RoundingReference, &net, &["b", "c"], sizes, schedule, Precision::Bf16);
        check(&cpu(2), &net, &["b", "c"], sizes, schedule, Precision::Bf16);
    }
}
