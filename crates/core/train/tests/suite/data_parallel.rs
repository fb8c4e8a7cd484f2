//! Ranks on the CPU device: equal to one rank with the whole batch, identical on all ranks, and overlapping.

use std::sync::mpsc;
use std::time::Duration;

use enmasse_comm::Group;
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_device::{Device, HostBatch, Program, StepInputs, StepMetrics};
use enmasse_graph::{BucketSizes, CompileOptions, Conv, Mode, Phase, Pool, Tensor, compile};
use enmasse_tensor::RandomStream;
use enmasse_train::initialize;

/// The CPU device at its best instruction set.
fn cpu(threads: usize) -> Cpu {
    Cpu::new(CpuOptions { threads, ..CpuOptions::default() }).unwrap()
}

const SIZE: usize = 20;
const CLASSES: usize = 5;
/// Divisible by 1, 2, 3, 4 and 5.
const GLOBAL_BATCH: usize = 60;

fn net(x: Tensor) -> Tensor {
    let x = x.conv2d("stem", Conv::new(9, 3).padding(1).no_bias()).batch_norm("bn").relu().max_pool(Pool::new(2));
    let y = x.clone().conv2d("a", Conv::new(9, 3).padding(1).no_bias()).batch_norm("bn_a").relu();
    let x = (y.conv2d("b", Conv::new(9, 1).no_bias()).batch_norm("bn_b") + x).relu();
    let x = x.conv2d("down", Conv::new(17, 3).stride(2).padding(1)).relu().dropout("drop", 0.3);
    x.adaptive_avg_pool([2, 2]).flatten().linear("fc", CLASSES)
}

/// The global batch of a step: noise whose colour indicates the class.
struct Samples {
    images: Vec<u8>,
    labels: Vec<i32>,
    indices: Vec<u64>,
}

impl Samples {
    fn of_step(step: u64) -> Self {
        let mut noise = RandomStream::new(1, "pictures", 0, step);
        let labels: Vec<i32> = (0..GLOBAL_BATCH).map(|i| (i % CLASSES) as i32).collect();
        let images = (labels.iter())
            .flat_map(|&label| {
                (0..SIZE * SIZE * 3).map(move |i| (label as usize * 37 + i % 3 * 11) as u8).collect::<Vec<_>>()
            })
            .map(|base| base.wrapping_add((noise.next_u32() % 64) as u8))
            .collect();
        Samples { images, labels, indices: (0..GLOBAL_BATCH as u64).map(|i| step * 100 + i).collect() }
    }

    /// The inputs of one shard.
    fn shard(&self, shard: usize, shards: usize, step: u64) -> StepInputs {
        let batch = GLOBAL_BATCH / shards;
        let range = shard * batch..(shard + 1) * batch;
        let image = SIZE * SIZE * 3;
        let batch = HostBatch {
            images: self.images[range.start * image..range.end * image].to_vec(),
            labels: self.labels[range.clone()].to_vec(),
            sample_indices: self.indices[range].to_vec(),
            ..HostBatch::default()
        };
        StepInputs { epoch: 2, learning_rate: 0.05, optimizer_step: step + 1, ..StepInputs::evaluation(batch.into()) }
    }
}

fn program(group: Option<Group>, threads: usize, sync_batch_norm: bool, buckets: BucketSizes) -> Box<dyn Program> {
    let shards = group.as_ref().map_or(1, Group::world_size);
    let options = CompileOptions {
        shards,
        sync_batch_norm,
        buckets,
        size: [SIZE; 2],
        ..CompileOptions::new("net", GLOBAL_BATCH / shards, SIZE, CLASSES)
    };
    let mut program = cpu(threads).compile(compile(&net, &options).unwrap(), group).unwrap();
    initialize(program.as_mut(), 3).unwrap();
    program
}

fn state(program: &mut dyn Program) -> Vec<(String, Vec<f64>)> {
    let names: Vec<String> = program.plans().state.iter().map(|tensor| tensor.name.clone()).collect();
    names.into_iter().map(|name| (name.clone(), program.store(&name).unwrap())).collect()
}

fn gradients(program: &mut dyn Program) -> Vec<(String, Vec<f64>)> {
    let names = state(program).into_iter().map(|(name, _)| format!("gradient.{name}"));
    names.filter_map(|name| program.store(&name).ok().map(|values| (name, values))).collect()
}

/// The observations of a run of some steps: the first step's gradients, each step's metrics, and the state at the end.
struct Seen {
    gradients: Vec<(String, Vec<f64>)>,
    metrics: Vec<StepMetrics>,
    state: Vec<(String, Vec<f64>)>,
}

fn run(ranks: usize, threads: usize, steps: u64) -> Vec<Seen> {
    let groups: Vec<Option<Group>> = match ranks {
        1 => vec![None],
        _ => Group::threads(ranks).unwrap().into_iter().map(Some).collect(),
    };
    let handles: Vec<_> = (groups.into_iter())
        .map(|group| {
            std::thread::spawn(move || {
                let rank = group.as_ref().map_or(0, Group::rank);
                let mut program = program(group, threads, true, BucketSizes { first: 1024, other: 4096 });
                let mut seen = Seen { gradients: Vec::new(), metrics: Vec::new(), state: Vec::new() };
                for step in 0..steps {
                    let samples = Samples::of_step(step);
                    let inputs = samples.shard(rank, ranks, step);
                    let ticket = program.submit(Mode::Train, &Phase::ALL, &inputs).unwrap();
                    seen.metrics.push(program.metrics(ticket).unwrap());
                    if step == 0 {
                        seen.gradients = gradients(program.as_mut());
                    }
                }
                seen.state = state(program.as_mut());
                seen
            })
        })
        .collect();
    handles.into_iter().map(|handle| handle.join().unwrap()).collect()
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|v| v * v).sum::<f64>().sqrt()
}

#[test]
fn ranks_with_sync_batch_norm_equal_one_rank_with_the_whole_batch() {
    let whole = run(1, 2, 10).remove(0);
    let scale = norm(whole.gradients.iter().flat_map(|(_, values)| values.iter().copied()));
    for ranks in [2, 3, 5] {
        let all = run(ranks, 1, 10);
        for (rank, seen) in all.iter().enumerate() {
            for ((name, own), (_, expected)) in seen.gradients.iter().zip(&whole.gradients) {
                let error = norm(own.iter().zip(expected).map(|(a, b)| a - b));
                let size = norm(expected.iter().copied()).max(1e-3 * scale);
                assert!(error <= 1e-4 * size, "{ranks} ranks, {name}: {error} of {size}");
            }
            for (own, expected) in seen.metrics.iter().zip(&whole.metrics) {
                assert!((own.loss - expected.loss).abs() <= 1e-3, "{own:?} {expected:?}");
            }
            assert_eq!(seen.metrics, all[0].metrics, "rank {rank}");
            assert_eq!(seen.state, all[0].state, "rank {rank} of {ranks} differs from rank 0");
        }
    }
}

#[test]
fn threads_of_a_rank_change_no_bit() {
    let expected = run(2, 1, 3);
    for threads in [2, 3] {
        let found = run(2, threads, 3);
        assert_eq!(found[0].state, expected[0].state, "{threads} threads");
        assert_eq!(found[0].metrics, expected[0].metrics, "{threads} threads");
    }
}

/// Without SyncBatchNorm, whose statistics would make ranks wait for each other, rank 1 begins only when rank 0 has
/// finished its backward phase. No sum can be complete without rank 1. Therefore all of rank 0's backward instructions
/// after the first bucket's start have run while that bucket was in flight.
#[test]
fn backward_runs_while_buckets_are_in_flight() {
    let mut groups = Group::threads(2).unwrap().into_iter();
    let (late, early) = (groups.next_back(), groups.next());
    let (tell, hear) = mpsc::channel();
    let samples = &Samples::of_step(0);
    let step = &|group: Option<Group>, shard: usize, begin: &dyn Fn(), between: &dyn Fn()| {
        let mut program = program(group, 1, false, BucketSizes { first: 512, other: 1024 });
        assert!(program.plans().train.as_ref().unwrap().buckets.len() > 3);
        begin();
        let inputs = samples.shard(shard, 2, 0);
        program.submit(Mode::Train, &[Phase::Forward, Phase::Loss, Phase::Backward], &inputs).unwrap();
        between();
        let ticket = program.submit(Mode::Train, &[Phase::Reduce, Phase::Check, Phase::Update], &inputs).unwrap();
        program.metrics(ticket).unwrap()
    };
    let found = std::thread::scope(|scope| {
        let first = scope.spawn(|| step(early, 0, &|| (), &|| tell.send(()).unwrap()));
        let wait = move || hear.recv_timeout(Duration::from_secs(300)).unwrap();
        let second = scope.spawn(move || step(late, 1, &wait, &|| ()));
        [first.join().unwrap(), second.join().unwrap()]
    });
    assert_eq!(found[0], found[1]);
}
