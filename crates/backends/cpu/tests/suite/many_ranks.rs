//! As many ranks as a machine without a cluster can have: threads, on nodes that exchange data over TCP.

use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use enmasse_comm::{Group, Rendezvous};
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_device::{Device, Hosting, StepInputs, StepMetrics};
use enmasse_graph::{BucketSizes, CompileOptions, Mode, Phase, Plans, Tensor};

use crate::common::{fill, samples_of};

const SIZE: usize = 8;
const CLASSES: usize = 5;
const STEPS: u64 = 10;
/// Long enough for any of so many ranks on two cores. A rank that hangs fails the test then.
const LIMIT: Duration = Duration::from_secs(240);
static TURN: Mutex<()> = Mutex::new(());

fn net(x: Tensor) -> Tensor {
    x.flatten().linear("hidden", 16).relu().linear("fc", CLASSES)
}

fn plans(device: &Cpu, shards: usize, buckets: BucketSizes) -> Plans {
    let options = CompileOptions { shards, buckets, ..CompileOptions::new("net", 1, SIZE, CLASSES) };
    device.target().compile(&net, &options).unwrap()
}

/// The inputs of the shards that a program hosts: a sample each.
fn inputs(step: u64, shards: std::ops::Range<usize>) -> StepInputs {
    let batch = samples_of(step, shards, [1, SIZE, CLASSES]);
    StepInputs { learning_rate: 0.05, optimizer_step: step, ..StepInputs::evaluation(batch.into()) }
}

/// The bits of the state after all steps, and each step's metrics.
fn train(device: &Cpu, shards: usize, buckets: BucketSizes, group: Option<Group>) -> (Vec<u64>, Vec<StepMetrics>) {
    let plans = plans(device, shards, buckets);
    let local = Hosting::new(&plans, group.as_ref()).unwrap().shards();
    let mut program = device.compile(plans, group).unwrap();
    fill(&mut *program);
    let mut step = |step| {
        let ticket = program.submit(Mode::Train, &Phase::ALL, &inputs(step, local.clone())).unwrap();
        program.metrics(ticket).unwrap()
    };
    let metrics = (1..=STEPS).map(&mut step).collect();
    let names: Vec<String> = program.plans().state.iter().map(|tensor| tensor.name.clone()).collect();
    let state = names.iter().flat_map(|name| program.store(name).unwrap());
    (state.map(f64::to_bits).collect(), metrics)
}

/// Ranks on nodes of as many each train as one rank does with as many shards, bit for bit.
fn check(nodes: usize, ranks_of_a_node: usize, buckets: BucketSizes) {
    let ranks = nodes * ranks_of_a_node;
    let device = &Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap();
    // One such group at a time: a process may have so many files and no more.
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let expected = &train(device, ranks, buckets, None);
    assert_ne!(expected.1[0], expected.1[STEPS as usize - 1]);
    let mut listener = Some(TcpListener::bind("127.0.0.1:0").unwrap());
    let address = format!("tcp://{}", listener.as_ref().unwrap().local_addr().unwrap());
    let mut rendezvous = |rank: usize| {
        let mut rendezvous = Rendezvous::tcp(&address, rank, ranks).unwrap();
        rendezvous.node = Some((rank / ranks_of_a_node).to_string());
        rendezvous.listener = listener.take();
        (rendezvous.join_timeout, rendezvous.options.timeout, rendezvous.heartbeat) = (LIMIT, LIMIT, LIMIT);
        rendezvous
    };
    let all: Vec<_> = (0..ranks).map(&mut rendezvous).collect();
    thread::scope(|scope| {
        let run = |rank: Rendezvous| move || train(device, ranks, buckets, Some(rank.join().unwrap())) == *expected;
        let threads: Vec<_> = all.into_iter().map(|rank| scope.spawn(run(rank))).collect();
        for (rank, thread) in threads.into_iter().enumerate() {
            assert!(thread.join().unwrap(), "rank {rank} of {nodes} x {ranks_of_a_node} has other bits than one rank");
        }
    });
}

/// It has 13,000 files, up to 8 GB of memory where the kernel gives huge pages, and two cores for a minute.
#[test]
fn a_thousand_ranks_train_with_the_bits_of_one() {
    if test_support::time() {
        check(8, 128, BucketSizes { first: 1 << 20, other: 1 << 20 });
    }
}

/// The first sum of a step goes directly to every node, and the second in slices.
#[test]
fn ranks_of_many_nodes_train_with_the_bits_of_one() {
    check(32, 8, BucketSizes { first: 256, other: 1 << 20 });
}
