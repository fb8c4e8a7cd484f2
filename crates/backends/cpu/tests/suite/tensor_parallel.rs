//! Tensor-parallel models: ranks that have a part of each cut layer compute what one rank does with all of it, but for the rounding of
//! the sums over ranks.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::thread;

use enmasse_comm::Group;
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_device::{Device, HostBatch, Program, StepInputs, StepMetrics, TensorRank};
use enmasse_graph::optimizers::AdamW;
use enmasse_graph::{CompileOptions, Conv, Metric, Mode, Optimizer, Phase, Plans, Precision, Tensor, TensorParallel};
use enmasse_reference::{Reference, aliasing_is_safe};
use proptest::prelude::*;

use crate::common::{fill, samples_of};

const SIZE: usize = 8;
/// Samples per shard.
const BATCH: usize = 3;
const CLASSES: usize = 5;
const STEPS: u64 = 3;

/// A pair of layers of a random model.
#[derive(Clone, Copy, Debug)]
enum Block {
    /// Two linear layers with a width of 4 times this, after a layer norm and beside a shortcut.
    Perceptron { width: usize, gelu: bool, dropout: bool },
    /// Attention in 4 heads of so many channels.
    Attention { channels: usize, dropout: bool },
}

fn block() -> impl Strategy<Value = Block> {
    prop_oneof![
        (1usize..=9, any::<bool>(), any::<bool>()).prop_map(|(width, gelu, dropout)| Block::Perceptron {
            width,
            gelu,
            dropout
        }),
        (1usize..=3, any::<bool>()).prop_map(|(channels, dropout)| Block::Attention { channels, dropout }),
    ]
}

/// Blocks over tokens, and a classifier of a pair and a head.
#[derive(Clone, Debug)]
struct Net {
    channels: usize,
    blocks: Vec<Block>,
    /// The width of the classifier's pair ÷ 4, if it has one.
    classifier: Option<usize>,
}

impl Net {
    fn forward(&self, x: Tensor) -> Tensor {
        let mut x = x.conv2d("stem", Conv::new(self.channels, 3).stride(3)).tokens();
        for (number, block) in self.blocks.iter().enumerate() {
            let part = |name: &str| format!("blocks.{number}.{name}");
            let y = x.clone().layer_norm(&part("norm"), 1e-6);
            let drop = |y: Tensor, dropout: bool| if dropout { y.dropout(&part("drop"), 0.3) } else { y };
            let y = match *block {
                Block::Perceptron { width, gelu, dropout } => {
                    let y = y.linear(&part("fc1"), 4 * width);
                    drop(if gelu { y.gelu() } else { y.relu() }, dropout).linear(&part("fc2"), self.channels)
                }
                Block::Attention { channels, dropout } => {
                    let y = y.linear(&part("qkv"), 3 * 4 * channels).attention(4);
                    drop(y, dropout).linear(&part("proj"), self.channels)
                }
            };
            x = x + y;
        }
        let x = x.mean_tokens();
        let x = match self.classifier {
            Some(width) => x.linear("fc1", 4 * width).relu().dropout("drop", 0.4).linear("fc2", 7).relu(),
            None => x,
        };
        x.linear("head", CLASSES)
    }
}

fn net() -> impl Strategy<Value = Net> {
    // A layer norm of very few channels enlarges what rounding does.
    (5usize..=9, prop::collection::vec(block(), 1..3), prop::option::of(1usize..=5))
        .prop_map(|(channels, blocks, classifier)| Net { channels, blocks, classifier })
}

#[derive(Clone, Copy, Debug)]
struct Run {
    shards: usize,
    precision: Precision,
    adamw: bool,
}

fn plans(device: &dyn Device, net: &Net, run: Run, tensor_parallel: Option<usize>) -> Plans {
    let options = CompileOptions {
        shards: run.shards,
        tensor_parallel,
        precision: run.precision,
        weighted_loss: true,
        metrics: vec![Metric::Top(2)],
        optimizer: if run.adamw {
            AdamW::default().into()
        } else {
            Optimizer::from(enmasse_graph::optimizers::Sgd::default())
        },
        ..CompileOptions::new("net", BATCH, SIZE, CLASSES)
    };
    device.target().compile(&|x| net.forward(x), &options).unwrap()
}

/// The inputs of the shards that a program hosts.
fn inputs(step: u64, shards: Range<usize>, loss_weight: Option<f32>) -> StepInputs {
    let batch = HostBatch { loss_weight, ..samples_of(step, shards, [BATCH, SIZE, CLASSES]) };
    StepInputs { learning_rate: 0.01, optimizer_step: step, ..StepInputs::evaluation(batch.into()) }
}

/// State tensors in stored order.
type State = BTreeMap<String, Vec<f32>>;

fn state(program: &mut dyn Program) -> State {
    let state = Mutex::new(State::new());
    let read = |_: usize, tensor: &enmasse_graph::StateTensor, values: &[f32]| {
        state.lock().unwrap().insert(tensor.name.clone(), values.to_vec());
    };
    program.read_state(&|_| true, &read).unwrap();
    state.into_inner().unwrap()
}

/// What a rank has after some steps: the metrics of training, the results of an evaluation, and its state.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    training: Vec<StepMetrics>,
    evaluation: StepMetrics,
    logits: Vec<f64>,
    state: State,
}

fn train(program: &mut dyn Program, shards: &Range<usize>, stops: bool) -> Seen {
    let step = |step| {
        let inputs = StepInputs { stop: stops && step == STEPS, ..inputs(step, shards.clone(), Some(1.25)) };
        let ticket = program.submit(Mode::Train, &Phase::ALL, &inputs).unwrap();
        program.metrics(ticket).unwrap()
    };
    let training = (1..=STEPS).map(step).collect();
    let evaluated = inputs(9, shards.clone(), None);
    let ticket = program.submit(Mode::Evaluate, &[Phase::Forward, Phase::Loss], &evaluated).unwrap();
    let evaluation = program.metrics(ticket).unwrap();
    let logits = program.store("logits").unwrap();
    Seen { training, evaluation, logits, state: state(program) }
}

/// The elements of a state tensor that a rank has.
fn part<'a>(cut: &TensorParallel, rank: TensorRank, name: &str, whole: &'a [f32]) -> Vec<&'a [f32]> {
    match cut.cut_of(name) {
        Some(cut) => cut.runs(rank.part, rank.parts).map(|run| &whole[run]).collect(),
        None => vec![whole],
    }
}

/// Each rank of layers cut over `parts`, with so many replicas, from this state. The last rank is asked to stop in the last step.
fn tensor_parallel(
    device: &dyn Device,
    net: &Net,
    run: Run,
    [parts, replicas]: [usize; 2],
    begin: &State,
) -> Vec<Seen> {
    let rank = |group: Group| {
        let place = TensorRank::new(group.rank(), group.world_size(), parts).unwrap();
        let plans = plans(device, net, run, Some(parts));
        let cut = plans.evaluate.tensor_parallel.clone().unwrap();
        [plans.train.as_ref().unwrap(), &plans.evaluate].into_iter().for_each(|plan| aliasing_is_safe(plan).unwrap());
        let own = run.shards / replicas;
        let stops = group.rank() + 1 == group.world_size();
        let mut program = device.compile(plans, Some(group)).unwrap();
        let fill = |tensor: &enmasse_graph::StateTensor, first: usize, values: &mut [f32]| {
            let own = part(&cut, place, &tensor.name, &begin[&tensor.name]).concat();
            values.copy_from_slice(&own[first..first + values.len()]);
        };
        program.fill_state(&|_| true, &fill).unwrap();
        train(program.as_mut(), &(place.replica * own..(place.replica + 1) * own), stops)
    };
    thread::scope(|scope| {
        let groups = Group::threads(parts * replicas).unwrap().into_iter();
        let threads: Vec<_> = groups.map(|group| scope.spawn(|| rank(group))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The tensors of the whole model, from the parts of the ranks of a replica.
fn whole(cut: &TensorParallel, ranks: &[Seen]) -> State {
    let tensor = |(name, first): (&String, &Vec<f32>)| {
        let Some(of_parameter) = cut.cut_of(name) else { return (name.clone(), first.clone()) };
        let mut values = vec![f32::NAN; of_parameter.whole.elements()];
        for (rank, seen) in ranks.iter().enumerate() {
            let mut own = seen.state[name].as_slice();
            for run in of_parameter.runs(rank, ranks.len()) {
                let (now, later) = own.split_at(run.len());
                values[run].copy_from_slice(now);
                own = later;
            }
            assert!(own.is_empty(), "{name}");
        }
        (name.clone(), values)
    };
    ranks[0].state.iter().map(tensor).collect()
}

/// The largest difference relative to the largest value.
fn difference(found: impl IntoIterator<Item = f64>, expected: impl IntoIterator<Item = f64>) -> f64 {
    let mut most = 0.0f64;
    let mut largest = 1e-3f64;
    for (found, expected) in found.into_iter().zip(expected) {
        // NaN counts as the largest.
        most = if (found - expected).abs() <= most { most } else { (found - expected).abs() };
        largest = largest.max(expected.abs());
    }
    most / largest
}

fn check(device: &dyn Device, net: &Net, run: Run, sizes: [usize; 2], tolerance: f64) {
    let [parts, replicas] = sizes;
    let mut program = device.compile(plans(device, net, run, None), None).unwrap();
    fill(program.as_mut());
    let begin = state(program.as_mut());
    let expected = train(program.as_mut(), &(0..run.shards), false);
    let found = tensor_parallel(device, net, run, sizes, &begin);
    let what = format!("{} {sizes:?} {run:?} {net:?}", device.name());
    let cut = plans(device, net, run, Some(parts)).evaluate.tensor_parallel.unwrap();
    let near = |name: &str, found: Vec<f64>, expected: Vec<f64>| {
        let most = difference(found, expected);
        assert!(most <= tolerance, "{name}: {most} of {what}");
    };
    let numbers = |values: &[f32]| values.iter().copied().map(f64::from).collect::<Vec<_>>();
    for (replica, ranks) in found.chunks(parts).enumerate() {
        for (rank, seen) in ranks.iter().enumerate() {
            // Ranks of a replica have the same results and the same whole tensors, and replicas the same parts, to the bit.
            let losses = |seen: &Seen| (seen.evaluation, seen.logits.clone());
            assert_eq!((losses(seen), &seen.training), (losses(&ranks[0]), &found[0].training), "{what}");
            assert_eq!(seen.state, found[rank].state, "{what}");
            for (name, values) in seen.state.iter().filter(|(name, _)| cut.cut_of(name).is_none()) {
                assert_eq!(values, &found[0].state[name], "{name} of {what}");
            }
        }
        let state = whole(&cut, ranks);
        assert!(state.keys().eq(expected.state.keys()), "{what}");
        state.iter().for_each(|(name, values)| near(name, numbers(values), numbers(&expected.state[name])));
        let own = expected.logits.len() / replicas;
        near("logits", ranks[0].logits.clone(), expected.logits[replica * own..(replica + 1) * own].to_vec());
    }
    let losses = |training: &[StepMetrics]| training.iter().map(|metrics| metrics.loss).collect::<Vec<_>>();
    near("losses", losses(&found[0].training), losses(&expected.training));
    // One rank was asked to stop, and all know it.
    let stops: Vec<bool> = found[0].training.iter().map(|metrics| metrics.stop).collect();
    assert_eq!(stops, [false, false, true], "{what}");
}

fn cpu(threads: usize) -> Cpu {
    Cpu::new(CpuOptions { threads, ..CpuOptions::default() }).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn cut_layers_compute_what_whole_ones_do(
        net in net(),
        sizes in prop::sample::select(vec![[2, 1], [4, 1], [2, 2]]),
        shards in 1usize..=2,
        adamw in any::<bool>(),
    ) {
        let run = Run { shards: shards * sizes[1], precision: Precision::F32, adamw };
        // The state is read as f32.
        check(&Reference, &net, run, sizes, 1e-6);
        // Adam divides by the root of its second moment, and so enlarges what rounding does to small gradients.
        check(&cpu(1), &net, Run { adamw: false, ..run }, sizes, 1e-3);
    }
}

/// A net with every kind of pair.
fn every_pair(channels: usize) -> Net {
    let blocks = vec![
        Block::Attention { channels: 3, dropout: true },
        Block::Perceptron { width: 9, gelu: true, dropout: true },
    ];
    Net { channels, blocks, classifier: Some(3) }
}

#[test]
fn cut_layers_of_bf16_are_near_whole_ones() {
    let run = Run { shards: 2, precision: Precision::Bf16, adamw: false };
    check(&cpu(2), &every_pair(24), run, [2, 1], 0.2);
}

#[test]
fn repeated_runs_have_the_same_bits() {
    let net = every_pair(6);
    let run = Run { shards: 4, precision: Precision::F32, adamw: true };
    let mut program = cpu(1).compile(plans(&cpu(1), &net, run, None), None).unwrap();
    fill(program.as_mut());
    let begin = state(program.as_mut());
    let first = tensor_parallel(&cpu(1), &net, run, [2, 2], &begin);
    // Threads change nothing either.
    for threads in [1, 3] {
        assert_eq!(tensor_parallel(&cpu(threads), &net, run, [2, 2], &begin), first, "{threads} threads");
    }
}
