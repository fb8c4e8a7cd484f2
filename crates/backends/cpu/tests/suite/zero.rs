//! ZeRO's first stage: ranks that each update a part have the bits of ranks that all update everything.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Barrier;
use std::thread;

use enmasse_comm::{Cause, CauseKind, Group, ShardMap};
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_device::{Device, DeviceError, Hosting, Program, StepInputs, StepMetrics};
use enmasse_graph::optimizers::{AdamW, Custom, Lars, Sgd};
use enmasse_graph::{
    Arena, Averaging, BucketSizes, CompileOptions, Conv, LOSS_SCALE_PREFIX, Metric, Mode, Optimizer, ParameterGroups,
    Phase, Plans, Precision, Strategy, Tensor,
};
use enmasse_reference::{Reference, RoundingReference, aliasing_is_safe};
use proptest::prelude::*;

use crate::common::{Batch, Fading, fill};

const STEPS: u64 = 3;
/// The name of a model whose loss begins with a scale that overflows.
const OVERFLOWS: &str = "overflows";

/// A net whose tensors have odd sizes.
fn net(width: usize) -> impl Fn(Tensor) -> Tensor {
    move |x: Tensor| {
        let x = x.conv2d("stem", Conv::new(width, 3).padding(1).no_bias()).batch_norm("bn").relu();
        let y = x.clone().conv2d("a", Conv::new(width, 3).padding(1)).batch_norm("bn_a");
        let x = (y + x).relu().adaptive_avg_pool([2, 2]).flatten();
        x.linear("fc1", 3 * width + 1).relu().linear("fc2", 5)
    }
}

/// What a rank has after some steps: metrics of each, and its state.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    metrics: Vec<StepMetrics>,
    state: BTreeMap<String, Vec<f64>>,
}

fn train(program: &mut dyn Program, whole: &Plans, shards: Range<usize>) -> Seen {
    fill(program);
    if whole.evaluate.model == OVERFLOWS {
        program.load(&format!("{LOSS_SCALE_PREFIX}scale"), &[2f64.powi(30)]).unwrap();
    }
    let step = |step| {
        let batch = Batch::random(whole, step).local(shards.clone(), whole.evaluate.shards);
        let lookahead = step.is_multiple_of(2).then_some(0.5);
        let inputs = StepInputs { learning_rate: 0.02, lookahead, ..batch.inputs(step) };
        let ticket = program.submit(Mode::Train, &Phase::ALL, &inputs).unwrap();
        program.metrics(ticket).unwrap()
    };
    let metrics = (1..=STEPS).map(step).collect();
    Seen { metrics, state: state(program) }
}

fn state(program: &mut dyn Program) -> BTreeMap<String, Vec<f64>> {
    let names: Vec<String> = program.plans().state.iter().map(|tensor| tensor.name.clone()).collect();
    names.into_iter().map(|name| (name.clone(), program.store(&name).unwrap())).collect()
}

/// Each rank after some steps.
fn ranks(device: &dyn Device, count: usize, width: usize, options: &CompileOptions) -> Vec<Seen> {
    let whole = device.target().compile(&net(width), options).unwrap();
    let rank = |group: Group| {
        let plans = whole.clone().of_rank(group.rank());
        let local = Hosting::new(&plans, Some(&group)).unwrap().shards();
        train(device.compile(plans, Some(group)).unwrap().as_mut(), &whole, local)
    };
    let groups = Group::threads(count).unwrap();
    thread::scope(|scope| {
        let threads: Vec<_> = groups.into_iter().map(|group| scope.spawn(|| rank(group))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn cpu() -> Cpu {
    Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap()
}

fn options(shards: usize) -> CompileOptions {
    let buckets = BucketSizes { first: 256, other: 3000 };
    CompileOptions { shards, buckets, ..CompileOptions::new("net", 2, 6, 5) }
}

fn optimizers() -> Vec<Optimizer> {
    let sgd = |momentum, nesterov| Optimizer::from(Sgd { momentum, nesterov });
    let adamw = AdamW { epsilon: 1e-3, ..AdamW::default() };
    let lars = Lars { trust_coefficient: 0.1, ..Lars::default() };
    vec![sgd(0.0, false), sgd(0.9, true), adamw.into(), lars.into(), Custom::new(Fading).into()]
}

/// Checks that ranks that update a part have, together, the bits of ranks that update everything.
fn check(device: &dyn Device, count: usize, width: usize, options: &CompileOptions) {
    let ddp = ranks(device, count, width, options).swap_remove(0);
    let cut = CompileOptions { strategy: Strategy::Partitioned { ranks: count }, ..options.clone() };
    let parts = ranks(device, count, width, &cut);
    let place = format!("{} {count} ranks {width} {} {:?}", device.name(), options.optimizer, options.clip_norm);
    let is_optimizer = |name: &str| name.starts_with("optimizer.") && !name.contains("loss_scale");
    let mut of_optimizer = BTreeMap::new();
    for (rank, Seen { metrics, state }) in parts.into_iter().enumerate() {
        assert_eq!(metrics, ddp.metrics, "{place} rank {rank}");
        for (name, values) in state {
            assert!(values.iter().all(|value| value.is_finite()));
            assert_eq!(values, ddp.state[&name], "{place} rank {rank} {name}");
            if is_optimizer(&name) {
                assert!(of_optimizer.insert(name, rank).is_none(), "one rank has it");
            }
        }
    }
    assert!(of_optimizer.keys().eq(ddp.state.keys().filter(|name| is_optimizer(name))), "{place}");
}

#[test]
fn every_optimizer_has_the_bits_of_ranks_that_all_update() {
    for device in [&cpu() as &dyn Device, &Reference] {
        for optimizer in optimizers() {
            for (count, shards, clip_norm) in [(2, 2, None), (3, 4, Some(0.3))] {
                let metrics = vec![Metric::GradientNorm];
                let groups = ParameterGroups { no_decay_norm_bias: true, ..ParameterGroups::one(0.1) };
                let optimizer = optimizer.clone();
                check(device, count, 7, &CompileOptions { optimizer, clip_norm, metrics, groups, ..options(shards) });
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn ranks_have_the_bits_of_ranks_that_all_update(
        count in 1usize..=5,
        more in 0usize..3,
        width in 1usize..14,
        optimizer in 0usize..5,
        (clips, average, sync, first, other) in (any::<bool>(), 0usize..3, any::<bool>(), 1usize..5000, 1usize..9000),
    ) {
        let options = CompileOptions {
            optimizer: optimizers().swap_remove(optimizer),
            clip_norm: clips.then_some(0.5),
            average: [None, Some(Averaging::Ema(0.5)), Some(Averaging::Lookahead)][average],
            sync_batch_norm: sync,
            groups: ParameterGroups::one(0.01),
            buckets: BucketSizes { first, other },
            ..options(count + more)
        };
        check(&cpu(), count, width, &options);
        check(&Reference, count, width, &options);
    }
}

/// Large tensors, whose norms several tasks add up.
#[test]
fn norms_of_large_tensors_have_the_same_bits() {
    for optimizer in [AdamW::default().into(), Lars::default().into()] {
        let options = CompileOptions { optimizer, clip_norm: Some(0.1), ..options(3) };
        check(&cpu(), 3, 100, &options);
    }
}

#[test]
fn steps_of_a_scaled_loss_are_skipped_by_all_ranks() {
    for (model, skipped) in [("net", 0), (OVERFLOWS, STEPS as usize)] {
        for clip_norm in [None, Some(0.5)] {
            let options = CompileOptions { precision: Precision::F16, clip_norm, model: model.into(), ..options(3) };
            check(&RoundingReference, 3, 6, &options);
            let seen = ranks(&RoundingReference, 3, 6, &options).swap_remove(0);
            let is_skipped = |step: &&StepMetrics| step.loss_scale.is_some_and(|scale| scale.skipped);
            assert_eq!(seen.metrics.iter().filter(is_skipped).count(), skipped, "{model}");
        }
    }
}

#[test]
fn one_program_that_hosts_all_shards_computes_the_same() {
    for device in [&cpu() as &dyn Device, &Reference] {
        let cut = CompileOptions { strategy: Strategy::Partitioned { ranks: 3 }, clip_norm: Some(0.5), ..options(3) };
        let whole = device.target().compile(&net(5), &cut).unwrap();
        let alone = train(device.compile(whole.clone(), None).unwrap().as_mut(), &whole, 0..3);
        let part = ranks(device, 3, 5, &cut).swap_remove(1);
        assert_eq!(part.metrics, alone.metrics);
        part.state.iter().for_each(|(name, values)| assert_eq!(values, &alone.state[name], "{name}"));
    }
}

#[test]
fn ranks_share_the_state_of_the_optimizer() {
    let cpu = cpu();
    let options = |strategy| CompileOptions { strategy, optimizer: AdamW::default().into(), ..options(4) };
    let plans = |strategy| cpu.target().compile(&net(40), &options(strategy)).unwrap();
    let map = ShardMap::new(4, 4).unwrap();
    let ddp = plans(Strategy::Distributed);
    let state = |plans: Plans, rank| cpu.memory(&plans, &Hosting::of(map, rank)).unwrap().state;
    let of_optimizer = 2 * ddp.arena_bytes(Arena::Optimizer(0));
    let others = state(ddp, 0) - of_optimizer;
    let cut = plans(Strategy::Partitioned { ranks: 4 });
    let parts: Vec<usize> = (0..4).map(|rank| state(cut.clone().of_rank(rank), rank) - others).collect();
    assert_eq!(parts.iter().sum::<usize>(), of_optimizer);
    let largest = cut.state.iter().map(|tensor| tensor.shape.elements() * 8).max().unwrap();
    assert!(*parts.iter().max().unwrap() <= of_optimizer / 4 + largest, "{parts:?}");
}

#[test]
fn plans_use_their_memory_safely() {
    let options = CompileOptions { strategy: Strategy::Partitioned { ranks: 3 }, ..options(3) };
    let plans = Reference.target().compile(&net(5), &options).unwrap();
    assert_eq!(aliasing_is_safe(&plans.train.unwrap()), Ok(()));
}

#[test]
fn a_plan_of_another_rank_is_refused() {
    let options = CompileOptions { strategy: Strategy::Partitioned { ranks: 2 }, ..options(3) };
    for device in [&cpu() as &dyn Device, &Reference] {
        let plans = device.target().compile(&net(5), &options).unwrap();
        let check = |plans: Plans, ranks: usize, expected: &str| {
            let group = Group::threads(ranks).unwrap().swap_remove(0);
            let error = device.compile(plans, Some(group)).err().unwrap().to_string();
            assert_eq!(error, format!("{expected}: use `Plans::of_rank`"));
        };
        check(plans.clone(), 2, "rank 0 of 2 cannot run the part of no rank of 2");
        check(plans.clone().of_rank(1), 2, "rank 0 of 2 cannot run the part of rank 1 of 2");
        check(plans.clone().of_rank(0), 3, "rank 0 of 3 cannot run the part of rank 0 of 2");
    }
}

#[test]
fn a_rank_that_dies_before_the_gather_ends_all() {
    let options = CompileOptions { strategy: Strategy::Partitioned { ranks: 3 }, ..options(3) };
    for device in [&cpu() as &dyn Device, &Reference] {
        let whole = device.target().compile(&net(5), &options).unwrap();
        // One of the process, because an abort may overtake the end of one of the group.
        let all_are_there = Barrier::new(3);
        let rank = |group: Group| {
            let plans = whole.clone().of_rank(group.rank());
            let mut program = device.compile(plans, Some(group.clone())).unwrap();
            let inputs = Batch::random(&whole, 1).shard(group.rank(), 3).inputs(1);
            let (last, others) = Phase::ALL.split_last().unwrap();
            program.submit(Mode::Train, others, &inputs).unwrap();
            all_are_there.wait();
            if group.rank() == 1 {
                group.abort(Cause::new(CauseKind::Error, "the disk is full").of_rank(1));
                return None;
            }
            Some(program.submit(Mode::Train, &[*last], &inputs).unwrap_err())
        };
        let errors: Vec<Option<DeviceError>> = thread::scope(|scope| {
            let groups = Group::threads(3).unwrap().into_iter();
            let ranks: Vec<_> = groups.map(|group| scope.spawn(|| rank(group))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        for error in errors.into_iter().flatten() {
            assert!(error.to_string().contains("the disk is full"), "{error}");
        }
    }
}
