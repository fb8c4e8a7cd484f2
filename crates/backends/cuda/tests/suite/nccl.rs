//! Ranks with a GPU each, which exchange by NCCL within the graph of a step.

use std::env;
use std::process::Command;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use enmasse_comm::{Cause, CauseKind, Group, GroupOptions, ShardMap};
use enmasse_device::{DeviceError, DeviceRequest, Program, StepMetrics, Summation};
use enmasse_graph::{CompileOptions, Mode, Phase, Precision};

use crate::ranks::{batch, check_replicas, on_gpus, on_groups, options, replicated, three_steps};
use crate::steps::bits;
use crate::{gpu, gpu_with};

/// Whether this process has four GPUs. If not, it runs the test in one that has.
fn has_gpus(test: &str) -> bool {
    if env::var_os("ENMASSE_TEST_GPU").is_some() {
        return enmasse_cuda::count().is_some_and(|gpus| gpus >= 4);
    }
    let has = env::var_os("EMULATED_GPUS").is_some();
    if !has && gpu().is_some() {
        let mut again = Command::new(env::current_exe().unwrap());
        let ended = again.args([test, "--exact"]).env("EMULATED_GPUS", "4").output().unwrap();
        let text = [ended.stdout, ended.stderr].concat();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&text));
    }
    has
}

fn on_ranks<T: Send>(
    options: &CompileOptions,
    ranks: usize,
    job: impl Fn(&mut dyn Program, &Group, &ShardMap) -> T + Sync,
) -> Vec<T> {
    reduced(Summation::Library, options, ranks, job)
}

fn reduced<T: Send>(
    summation: Summation,
    options: &CompileOptions,
    ranks: usize,
    job: impl Fn(&mut dyn Program, &Group, &ShardMap) -> T + Sync,
) -> Vec<T> {
    let gpu = |rank| gpu_with(&DeviceRequest { ordinal: Some(rank), summation, ..DeviceRequest::default() });
    on_gpus(options, ranks, gpu, job).unwrap()
}

/// Four steps, two of which may be in flight: their metrics, and the bits of the state.
fn steps(options: &CompileOptions, ranks: usize, submissions: &[&[Phase]]) -> Vec<(Vec<StepMetrics>, Vec<Vec<u64>>)> {
    steps_by(Summation::Library, options, ranks, submissions)
}

fn steps_by(
    summation: Summation,
    options: &CompileOptions,
    ranks: usize,
    submissions: &[&[Phase]],
) -> Vec<(Vec<StepMetrics>, Vec<Vec<u64>>)> {
    reduced(summation, options, ranks, |program, group, map| {
        let mut metrics = Vec::new();
        let mut before = None;
        for step in 1..=4 {
            let inputs = batch(program.plans(), map, group.rank(), step).inputs(step);
            let submit = |phases: &&[Phase]| program.submit(Mode::Train, phases, &inputs).unwrap();
            let ticket = submissions.iter().map(submit).last();
            metrics.extend(std::mem::replace(&mut before, ticket).map(|ticket| program.metrics(ticket).unwrap()));
        }
        metrics.extend(before.map(|ticket| program.metrics(ticket).unwrap()));
        (metrics, bits(program))
    })
}

#[test]
fn a_first_rank_that_alone_updates_has_the_bits_of_ranks_that_all_do() {
    if !has_gpus("nccl::a_first_rank_that_alone_updates_has_the_bits_of_ranks_that_all_do") {
        return;
    }
    for (ranks, precision) in [(2, Precision::F32), (3, Precision::F16)] {
        let [replicas, all] = replicated(ranks, precision).map(|options| on_ranks(&options, ranks, three_steps));
        check_replicas(&replicas, &all);
    }
}

#[test]
fn sums_of_two_ranks_have_the_bits_of_one() {
    if !has_gpus("nccl::sums_of_two_ranks_have_the_bits_of_one") {
        return;
    }
    let check = |shards: usize, sync_batch_norm: bool, submissions: &[&[Phase]]| {
        let options = options(shards, sync_batch_norm);
        let alone = steps(&options, 1, submissions);
        for rank in steps(&options, 2, submissions) {
            assert!(rank == alone[0], "{shards} shards, {sync_batch_norm}");
        }
    };
    check(2, false, &[&Phase::ALL]);
    check(2, true, &[&Phase::ALL]);
    // Each rank adds up a subtree of the fixed tree.
    check(4, true, &[&Phase::ALL]);
    check(2, true, &Phase::ALL.each_ref().map(std::slice::from_ref));
}

#[test]
fn sums_of_four_ranks_are_equal_on_all() {
    if !has_gpus("nccl::sums_of_four_ranks_are_equal_on_all") {
        return;
    }
    // Ranks 0 and 1 host two shards, which on rank 1 belong to different subtrees.
    let options = options(6, true);
    let alone = steps(&options, 1, &[&Phase::ALL]);
    let together = steps(&options, 4, &[&Phase::ALL]);
    assert!(together.iter().all(|rank| *rank == together[0]));
    assert!(distance(&alone[0].1, &together[0].1) < 1e-4);
}

/// The greatest difference of two states.
fn distance(one: &[Vec<u64>], other: &[Vec<u64>]) -> f64 {
    let pairs = one.iter().flatten().zip(other.iter().flatten());
    pairs.map(|(&one, &other)| (f64::from_bits(one) - f64::from_bits(other)).abs()).fold(0.0, f64::max)
}

#[test]
fn the_tree_has_the_bits_of_one_rank() {
    if !has_gpus("nccl::the_tree_has_the_bits_of_one_rank") {
        return;
    }
    let check = |shards: usize, ranks: usize| {
        let options = options(shards, false);
        let alone = steps(&options, 1, &[&Phase::ALL]);
        for rank in steps_by(Summation::Tree, &options, ranks, &[&Phase::ALL]) {
            assert!(rank == alone[0], "{shards} shards on {ranks} ranks");
        }
    };
    check(4, 4);
    check(3, 3);
    check(6, 4);
    check(5, 2);
}

#[test]
fn gradients_in_bf16_are_near_those_in_f32() {
    if !has_gpus("nccl::gradients_in_bf16_are_near_those_in_f32") {
        return;
    }
    let options = options(3, false);
    let of = |summation| steps_by(summation, &options, 3, &[&Phase::ALL]);
    let (wide, narrow) = (of(Summation::Library), of(Summation::Bf16));
    assert!(narrow.iter().all(|rank| *rank == narrow[0]));
    let distance = distance(&wide[0].1, &narrow[0].1);
    assert!(distance > 0.0 && distance < 1e-2, "{distance}");
    // Losses and running statistics travel as f32.
    assert_eq!(wide[0].0[0].loss, narrow[0].0[0].loss);
}

#[test]
fn a_failure_in_mid_step_ends_every_wait_and_changes_nothing() {
    if !has_gpus("nccl::a_failure_in_mid_step_ends_every_wait_and_changes_nothing") {
        return;
    }
    let options = options(2, true);
    let both = Barrier::new(2);
    on_ranks(&options, 2, |program, group, map| {
        let step = |program: &mut dyn Program, map: &ShardMap, rank: usize, step: u64| {
            let inputs = batch(program.plans(), map, rank, step).inputs(step);
            let ticket = program.submit(Mode::Train, &Phase::ALL, &inputs)?;
            program.metrics(ticket)
        };
        // The last of these is a graph.
        for number in 1..=3 {
            step(program, map, group.rank(), number).unwrap();
        }
        let before = bits(program);
        both.wait();
        if group.rank() == 1 {
            group.abort(Cause::new(CauseKind::Error, "the disk is full").of_rank(1));
        } else {
            let error = step(program, map, 0, 4).unwrap_err();
            assert!(matches!(&error, DeviceError::Cause(cause) if cause.message == "the disk is full"), "{error}");
        }
        // Without the group, the program goes on with the state from before the step.
        let plans = program.plans().clone();
        program.rejoin(plans, None).unwrap();
        assert!(bits(program) == before);
        step(program, &ShardMap::new(2, 1).unwrap(), 0, 4).unwrap();
    });
}

/// NCCL exchanges buffers of the ranks while it is captured, and the wait for a rank that had stopped was without a deadline.
#[test]
fn a_rank_that_stays_away_from_a_capture_is_named() {
    if env::var_os("ENMASSE_TEST_GPU").is_some() || !has_gpus("nccl::a_rank_that_stays_away_from_a_capture_is_named") {
        return;
    }
    let timeout = GroupOptions { timeout: Duration::from_secs(5), ..GroupOptions::default() };
    let groups = Group::threads_with(2, timeout).unwrap();
    let gpu = |rank| gpu_with(&DeviceRequest { ordinal: Some(rank), ..DeviceRequest::default() });
    on_groups(&options(2, false), groups, gpu, |program, group, map| {
        let mut step = |number: u64| {
            let inputs = batch(program.plans(), map, group.rank(), number).inputs(number);
            let ticket = program.submit(Mode::Train, &Phase::ALL, &inputs)?;
            program.metrics(ticket)
        };
        step(1).unwrap();
        if group.rank() == 0 {
            let error = step(2).unwrap_err();
            let is_named = matches!(&error, DeviceError::Cause(cause) if cause.to_string().contains("rank 1"));
            assert!(is_named, "{error}");
        }
        let start = Instant::now();
        while group.check().is_ok() {
            assert!(start.elapsed() < Duration::from_secs(60), "rank 0 waits without a deadline");
            std::thread::yield_now();
        }
    });
}
