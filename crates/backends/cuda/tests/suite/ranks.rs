//! Ranks that compute on GPUs and exchange by way of the host, since they share a GPU here.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use enmasse_comm::{Cause, CauseKind, Group, ShardMap};
use enmasse_device::{Device, DeviceError, Program, StepMetrics};
use enmasse_graph::{
    Averaging, BucketSizes, CompileOptions, Conv, Metric, Mode, Phase, Plans, Precision, Strategy, Tensor,
};

use crate::gpu;
use crate::program::{Batch, fill};
use crate::steps::bits;

fn net(x: Tensor) -> Tensor {
    let x = x.conv2d("a", Conv::new(6, 3).padding(1).no_bias()).batch_norm("bn_a").relu();
    let y = x.clone().conv2d("b", Conv::new(6, 3).padding(1).no_bias()).batch_norm("bn_b");
    (x + y).relu().adaptive_avg_pool([2, 2]).flatten().dropout("drop", 0.3).linear("fc", 4)
}

pub fn options(shards: usize, sync_batch_norm: bool) -> CompileOptions {
    // Several buckets, the last of which has the metrics.
    let buckets = BucketSizes { first: 256, other: 512 };
    let clip_norm = Some(0.5);
    CompileOptions { shards, sync_batch_norm, buckets, clip_norm, ..CompileOptions::new("net", 2, 6, 4) }
}

/// Runs `job` on `ranks` ranks, each with a program for its shards.
fn on_ranks<T: Send>(
    options: &CompileOptions,
    ranks: usize,
    job: impl Fn(&mut dyn Program, &Group, &ShardMap) -> T + Sync,
) -> Option<Vec<T>> {
    on_gpus(options, ranks, |_| gpu(), job)
}

/// The same, on the GPU of each rank.
pub fn on_gpus<T: Send>(
    options: &CompileOptions,
    ranks: usize,
    gpu: impl Fn(usize) -> Option<Box<dyn Device>> + Sync,
    job: impl Fn(&mut dyn Program, &Group, &ShardMap) -> T + Sync,
) -> Option<Vec<T>> {
    on_groups(options, Group::threads(ranks).unwrap(), gpu, job)
}

/// The same for ranks with these groups.
pub fn on_groups<T: Send>(
    options: &CompileOptions,
    groups: Vec<Group>,
    gpu: impl Fn(usize) -> Option<Box<dyn Device>> + Sync,
    job: impl Fn(&mut dyn Program, &Group, &ShardMap) -> T + Sync,
) -> Option<Vec<T>> {
    let ranks = groups.len();
    let map = ShardMap::new(options.shards, ranks).unwrap();
    let compiled = AtomicUsize::new(0);
    let rank = |group: Group| {
        let device = gpu(group.rank())?;
        let plans = device.target().compile(&net, options).unwrap().of_rank(group.rank());
        let mut program = device.compile(plans, Some(group.clone())).unwrap();
        fill(&mut *program);
        compiled.fetch_add(1, Ordering::SeqCst);
        // A rank that panics before this ends the group. At a barrier the others would wait for it for ever.
        while compiled.load(Ordering::SeqCst) < ranks {
            let ended = group.check();
            assert!(ended.is_ok() || compiled.load(Ordering::SeqCst) == ranks, "{ended:?}");
            std::thread::yield_now();
        }
        Some(job(&mut *program, &group, &map))
    };
    std::thread::scope(|scope| {
        let rank = &rank;
        let ranks: Vec<_> = groups.into_iter().map(|group| scope.spawn(move || rank(group))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

pub fn batch(plans: &Plans, map: &ShardMap, rank: usize, number: u64) -> Batch {
    Batch::random(plans, number).local(map.local(rank), map.shards())
}

#[test]
fn any_number_of_ranks_gives_the_same_bits() {
    let check = |shards: usize, sync_batch_norm: bool, submissions: &[&[Phase]], counts: &[usize]| {
        let options = options(shards, sync_batch_norm);
        let of = |ranks: usize| {
            on_ranks(&options, ranks, |program, group, map| {
                let mut losses = Vec::new();
                let mut before = None;
                for step in 1..=4 {
                    let inputs = batch(program.plans(), map, group.rank(), step).inputs(step);
                    let mut tickets =
                        submissions.iter().map(|phases| program.submit(Mode::Train, phases, &inputs).unwrap());
                    let ticket = tickets.by_ref().last();
                    drop(tickets);
                    losses
                        .extend(std::mem::replace(&mut before, ticket).map(|ticket| program.metrics(ticket).unwrap()));
                }
                losses.extend(before.map(|ticket| program.metrics(ticket).unwrap()));
                (losses, bits(program))
            })
        };
        let Some(alone) = of(1) else { return };
        for &ranks in counts {
            let together = of(ranks).unwrap();
            assert!(
                together.iter().all(|rank| *rank == alone[0]),
                "{shards} shards on {ranks} ranks, {sync_batch_norm}"
            );
        }
    };
    check(2, false, &[&Phase::ALL], &[2]);
    check(3, false, &[&Phase::ALL], &[2, 3]);
    check(2, true, &[&Phase::ALL], &[2]);
    check(3, true, &[&Phase::ALL], &[2, 3]);
    check(5, true, &[&Phase::ALL], &[2]);
    // Phase by phase, where a rank hosts one shard.
    check(2, true, &Phase::ALL.each_ref().map(std::slice::from_ref), &[2]);
}

/// What a rank has after three steps: their metrics, and the bits of each tensor of its state.
#[derive(Debug, PartialEq)]
pub struct Seen {
    pub metrics: Vec<StepMetrics>,
    pub state: BTreeMap<String, Vec<u64>>,
}

/// Three steps of one rank.
pub fn three_steps(program: &mut dyn Program, group: &Group, map: &ShardMap) -> Seen {
    let step = |step| {
        let inputs = batch(program.plans(), map, group.rank(), step).inputs(step);
        let ticket = program.submit(Mode::Train, &Phase::ALL, &inputs).unwrap();
        program.metrics(ticket).unwrap()
    };
    let metrics = (1..=3).map(step).collect();
    let names: Vec<String> = program.plans().state.iter().map(|tensor| tensor.name.clone()).collect();
    let state = names.into_iter().zip(bits(program)).collect();
    Seen { metrics, state }
}

/// Checks the ranks of a job in which the first one alone updates, next to those of one in which all do.
pub fn check_replicas(replicas: &[Seen], all: &[Seen]) {
    let [first, others @ ..] = replicas else { panic!("there are no ranks") };
    assert_eq!(first.metrics, all[0].metrics);
    assert!(first.state.keys().eq(all[0].state.keys()));
    for (name, values) in first.state.iter().filter(|(name, _)| !name.contains("running")) {
        assert_eq!(values, &all[0].state[name], "{name}");
    }
    for other in others {
        assert_eq!(other.metrics, first.metrics);
        let shared = |name: &str| !name.starts_with("optimizer.momentum_buffer.");
        let expected: BTreeMap<_, _> = first.state.iter().filter(|(name, _)| shared(name)).collect();
        assert_eq!(other.state.iter().collect::<BTreeMap<_, _>>(), expected);
    }
}

pub fn replicated(shards: usize, precision: Precision) -> [CompileOptions; 2] {
    let metrics = vec![Metric::GradientNorm];
    [Strategy::Replicated, Strategy::Distributed].map(|strategy| CompileOptions {
        strategy,
        precision,
        average: Some(Averaging::Ema(0.5)),
        metrics: metrics.clone(),
        ..options(shards, false)
    })
}

#[test]
fn a_first_rank_that_alone_updates_has_the_bits_of_ranks_that_all_do() {
    for (shards, ranks, precision) in [(2, 2, Precision::F32), (3, 3, Precision::F16), (3, 2, Precision::F32)] {
        let [replicas, all] = replicated(shards, precision).map(|options| on_ranks(&options, ranks, three_steps));
        let (Some(replicas), Some(all)) = (replicas, all) else { return };
        check_replicas(&replicas, &all);
    }
}

#[test]
fn a_rank_that_fails_ends_the_others_in_mid_step() {
    let seen = Mutex::new(Vec::new());
    let ended = on_ranks(&options(2, false), 2, |program, group, map| {
        if group.rank() == 1 {
            group.abort(Cause::new(CauseKind::Error, "the disk is full").of_rank(1));
            return;
        }
        let inputs = batch(program.plans(), map, 0, 1).inputs(1);
        let submitted = program.submit(Mode::Train, &Phase::ALL, &inputs);
        let error = submitted.and_then(|ticket| program.metrics(ticket)).unwrap_err();
        seen.lock().unwrap().push(matches!(error, DeviceError::Cause(_)).then(|| error.to_string()));
    });
    if ended.is_some() {
        let seen = seen.into_inner().unwrap();
        assert!(matches!(&seen[..], [Some(error)] if error.contains("the disk is full")), "{seen:?}");
    }
}

#[test]
fn a_loss_that_is_not_finite_is_found_by_all_ranks() {
    let found = on_ranks(&options(2, false), 2, |program, group, map| {
        let before = bits(program);
        // Only the first shard's images and parameters are equal; a NaN of one rank alone reaches both.
        if group.rank() == 1 {
            program.load("fc.bias", &[f64::NAN; 4]).unwrap();
        }
        let inputs = batch(program.plans(), map, group.rank(), 1).inputs(1);
        let ticket = program.submit(Mode::Train, &Phase::ALL, &inputs).unwrap();
        let error = program.metrics(ticket).unwrap_err();
        assert!(matches!(error, DeviceError::NonFinite { shard: 1, .. }), "{error:?}");
        assert!(group.rank() == 1 || bits(program) == before, "the step has changed the state");
    });
    assert!(found.is_none_or(|found| found.len() == 2));
}

/// Only the samples of rank 0 have gradients, which overflow in the first of two steps.
#[test]
fn an_overflow_on_one_rank_skips_the_step_of_all() {
    let options = CompileOptions { precision: Precision::F16, ..options(2, false) };
    let of = |ranks: usize| {
        on_ranks(&options, ranks, |program, group, map| {
            let found = [(1, 2f64.powi(40)), (2, 1024.0)].map(|(step, scale)| {
                program.load("optimizer.loss_scale.scale", &[scale]).unwrap();
                let mut all = Batch::random(program.plans(), step);
                all.labels[2..].fill(-1);
                let inputs = all.local(map.local(group.rank()), map.shards()).inputs(step);
                let ticket = program.submit(Mode::Train, &Phase::ALL, &inputs).unwrap();
                program.metrics(ticket).unwrap().loss_scale.map(|loss_scale| loss_scale.skipped)
            });
            assert_eq!(found, [Some(true), Some(false)]);
            bits(program)
        })
    };
    let (Some(alone), Some(together)) = (of(1), of(2)) else { return };
    assert!(together.iter().all(|rank| *rank == alone[0]));
}

#[test]
fn a_program_goes_on_in_another_group() {
    let options = options(2, true);
    let expected = on_ranks(&options, 1, |program, group, map| {
        let submit = |program: &mut dyn Program, step| {
            let inputs = batch(program.plans(), map, group.rank(), step).inputs(step);
            program.submit(Mode::Train, &Phase::ALL, &inputs).unwrap();
        };
        (1..=4).for_each(|step| submit(program, step));
        bits(program)
    });
    let (expected, leavers) = match expected {
        Some(mut expected) => (expected.remove(0), Mutex::new(())),
        None => return,
    };
    let found = on_ranks(&options, 2, |program, group, map| {
        let submit = |program: &mut dyn Program, map: &ShardMap, rank: usize, step: u64| {
            let inputs = batch(program.plans(), map, rank, step).inputs(step);
            program.submit(Mode::Train, &Phase::ALL, &inputs).unwrap();
        };
        (1..=2).for_each(|step| submit(program, map, group.rank(), step));
        let _one_at_a_time = leavers.lock().unwrap();
        program.rejoin(program.plans().clone(), None).unwrap();
        let alone = ShardMap::new(2, 1).unwrap();
        (3..=4).for_each(|step| submit(program, &alone, 0, step));
        bits(program)
    });
    assert!(found.unwrap().iter().all(|bits| *bits == expected));
}
