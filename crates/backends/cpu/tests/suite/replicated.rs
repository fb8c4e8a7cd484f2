//! DataParallel: the first rank alone updates, with the bits that all ranks have otherwise.

use std::collections::BTreeMap;
use std::thread;

use enmasse_comm::{Group, ShardMap};
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_device::{Device, Hosting, Program, StepInputs, StepMetrics};
use enmasse_graph::{Arena, Averaging, CompileOptions, Conv, Metric, Mode, Phase, Plans, Strategy, Tensor};
use enmasse_reference::{Reference, aliasing_is_safe};

use crate::common::{fill, samples_of};

const SIZE: usize = 8;
/// Samples per shard.
const BATCH: usize = 4;
const CLASSES: usize = 5;

fn net(x: Tensor) -> Tensor {
    let x = x.conv2d("stem", Conv::new(6, 3).padding(1).no_bias()).batch_norm("bn").relu();
    let y = x.clone().conv2d("a", Conv::new(6, 3).padding(1).no_bias()).batch_norm("bn_a");
    (y + x).relu().dropout("drop", 0.3).adaptive_avg_pool([2, 2]).flatten().linear("fc", CLASSES)
}

fn plans(device: &dyn Device, shards: usize, strategy: Strategy) -> Plans {
    let options = CompileOptions {
        shards,
        strategy,
        clip_norm: Some(0.5),
        average: Some(Averaging::Ema(0.5)),
        metrics: vec![Metric::GradientNorm],
        ..CompileOptions::new("net", BATCH, SIZE, CLASSES)
    };
    device.target().compile(&net, &options).unwrap()
}

/// The inputs of the shards that a program hosts.
fn inputs(step: u64, shards: std::ops::Range<usize>) -> StepInputs {
    let batch = samples_of(step, shards, [BATCH, SIZE, CLASSES]);
    StepInputs { learning_rate: 0.05, optimizer_step: step, ..StepInputs::evaluation(batch.into()) }
}

/// What a rank has after some steps: metrics of each, and its state.
#[derive(Debug, PartialEq)]
struct Seen {
    metrics: Vec<StepMetrics>,
    state: BTreeMap<String, Vec<f64>>,
}

fn train(program: &mut dyn Program, shards: std::ops::Range<usize>, steps: u64) -> Seen {
    fill(program);
    let step = |step| {
        let ticket = program.submit(Mode::Train, &Phase::ALL, &inputs(step, shards.clone())).unwrap();
        program.metrics(ticket).unwrap()
    };
    let metrics = (1..=steps).map(step).collect();
    let names: Vec<String> = program.plans().state.iter().map(|tensor| tensor.name.clone()).collect();
    let state = names.into_iter().map(|name| (name.clone(), program.store(&name).unwrap()));
    Seen { metrics, state: state.collect() }
}

/// Each rank after some steps.
fn ranks(device: &dyn Device, ranks: usize, shards: usize, strategy: Strategy, steps: u64) -> Vec<Seen> {
    let rank = |group: Group| {
        let plans = plans(device, shards, strategy).of_rank(group.rank());
        let local = Hosting::new(&plans, Some(&group)).unwrap().shards();
        train(device.compile(plans, Some(group)).unwrap().as_mut(), local, steps)
    };
    let groups = Group::threads(ranks).unwrap();
    thread::scope(|scope| {
        let threads: Vec<_> = groups.into_iter().map(|group| scope.spawn(|| rank(group))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn devices() -> [Box<dyn Device>; 2] {
    [Box::new(Reference), Box::new(Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap())]
}

fn is_running(name: &str) -> bool {
    name.contains("running")
}

#[test]
fn the_first_rank_has_the_bits_of_ranks_that_all_update() {
    for device in devices() {
        for (count, shards) in [(2, 2), (3, 3), (2, 5)] {
            let all = ranks(device.as_ref(), count, shards, Strategy::Distributed, 4);
            let one = ranks(device.as_ref(), count, shards, Strategy::Replicated, 4);
            assert_eq!(one[0].metrics, all[0].metrics, "{} {count}", device.name());
            assert!(one[0].state.keys().eq(all[0].state.keys()));
            for (name, values) in one[0].state.iter().filter(|(name, _)| !is_running(name)) {
                assert_eq!(values, &all[0].state[name], "{} {count} {name}", device.name());
            }
        }
    }
}

#[test]
fn the_other_ranks_have_the_same_model_and_no_optimizer() {
    for device in devices() {
        let found = ranks(device.as_ref(), 3, 3, Strategy::Replicated, 2);
        let shared = found[0].state.iter().filter(|(name, _)| !name.starts_with("optimizer."));
        let shared: BTreeMap<String, Vec<f64>> = shared.map(|(name, values)| (name.clone(), values.clone())).collect();
        assert!(shared.len() < found[0].state.len());
        for other in &found[1..] {
            assert_eq!(other.state, shared, "{}", device.name());
            assert_eq!(other.metrics, found[0].metrics, "{}", device.name());
        }
    }
}

#[test]
fn running_statistics_are_those_of_the_first_shard() {
    for device in devices() {
        for (count, shards) in [(2, 2), (3, 3), (2, 5)] {
            let found = ranks(device.as_ref(), count, shards, Strategy::Replicated, 1);
            let mut alone = device.compile(plans(device.as_ref(), 1, Strategy::Replicated), None).unwrap();
            let alone = train(alone.as_mut(), 0..1, 1);
            let running = alone.state.iter().filter(|(name, _)| is_running(name));
            assert_eq!(running.clone().count(), 8, "of two layers, and their averages");
            for (name, values) in running {
                found.iter().for_each(|rank| assert_eq!(&rank.state[name], values, "{} {name}", device.name()));
            }
        }
    }
}

#[test]
fn one_program_that_hosts_all_shards_computes_the_same() {
    for device in devices() {
        let found = ranks(device.as_ref(), 3, 3, Strategy::Replicated, 3).remove(0);
        let mut whole = device.compile(plans(device.as_ref(), 3, Strategy::Replicated), None).unwrap();
        assert_eq!(train(whole.as_mut(), 0..3, 3), found, "{}", device.name());
    }
}

#[test]
fn the_other_ranks_need_less_memory() {
    let [_, cpu] = devices();
    let plans = plans(cpu.as_ref(), 2, Strategy::Replicated);
    let map = ShardMap::new(2, 2).unwrap();
    let state = |rank: usize| cpu.memory(&plans.clone().of_rank(rank), &Hosting::of(map, rank)).unwrap().state;
    assert_eq!(state(0) - state(1), plans.arena_bytes(Arena::Optimizer(0)));
}

#[test]
fn plans_use_their_memory_safely() {
    let [reference, _] = devices();
    let plans = plans(reference.as_ref(), 3, Strategy::Replicated);
    assert_eq!(aliasing_is_safe(&plans.train.unwrap()), Ok(()));
}
