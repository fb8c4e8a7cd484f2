//! `all_reduce = auto`: what the model of costs chooses has the bits of the algorithm by its name, and a run says it.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use crate::common::Colours;
use enmasse_comm::{Algorithm, AlgorithmChoice, Group, GroupOptions, Rendezvous};
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_graph::Tensor;
use enmasse_train::{
    AllReduceAlgorithm, Callback, CallbackResult, Checkpoint, ChosenAlgorithm, Control, RunPaths, Started, TrainConfig,
    Trainer, TrainingData,
};

/// One bucket of 52.7 KiB and one of a few numbers.
fn net(x: Tensor, classes: usize) -> Tensor {
    x.flatten().linear("fc1", 69).relu().linear("fc2", classes)
}

/// Ranks of this many nodes, to which they are dealt one after another.
fn groups(ranks: usize, nodes: usize, all_reduce: AlgorithmChoice) -> Vec<Group> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    let mut listener = Some(listener);
    let join = |rank: usize| {
        let mut rendezvous = Rendezvous::tcp(&address, rank, ranks).unwrap();
        rendezvous.node = Some((rank % nodes).to_string());
        rendezvous.listener = listener.take();
        rendezvous.options = GroupOptions { all_reduce, ..GroupOptions::default() };
        std::thread::spawn(move || rendezvous.join().unwrap())
    };
    let threads: Vec<_> = (0..ranks).map(join).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// What a run says of its sums.
#[derive(Default)]
struct Told(Option<ChosenAlgorithm>);

impl Callback for Told {
    fn on_fit_start(&mut self, started: &Started, _: &mut Control) -> CallbackResult {
        self.0 = started.all_reduce;
        Ok(())
    }
}

/// What a run leaves.
struct Run {
    /// The tensors of the last checkpoint, with the bits of their values.
    bits: Vec<(String, Vec<u32>)>,
    /// Those of each epoch.
    losses: Vec<String>,
    /// What all ranks said.
    told: Option<ChosenAlgorithm>,
}

fn run(out: &Path, all_reduce: AllReduceAlgorithm, (ranks, nodes): (usize, usize), epochs: usize) -> Run {
    let config = TrainConfig {
        all_reduce,
        epochs,
        batch: Some(4),
        size: Some(8),
        check_ranks: true,
        resume: out.exists().into(),
        out: Some(out.to_owned()),
        ..TrainConfig::default()
    };
    let data = TrainingData::new(Arc::new(Colours(48)), Arc::new(Colours(17)));
    let told = std::thread::scope(|scope| {
        let rank = |group: Group| {
            let config = config.clone();
            let data = &data;
            scope.spawn(move || {
                let cpu = Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap();
                let mut told = Told::default();
                Trainer::new(config, Arc::new(cpu)).group(group).callback(&mut told).fit("net", &net, data).unwrap();
                told.0
            })
        };
        let ranks: Vec<_> = groups(ranks, nodes, all_reduce.into()).into_iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(told.iter().all(|other| *other == told[0]), "{told:?}");
    let paths = RunPaths::new(out);
    let tensors = Checkpoint::load(&paths.last_checkpoint()).unwrap().tensors.into_iter();
    let bits = tensors.map(|tensor| (tensor.name, tensor.values.iter().map(|value| value.to_bits()).collect()));
    let losses = std::fs::read_to_string(paths.metrics()).unwrap();
    let losses = losses.lines().map(|line| {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        format!("{} {}", record["train_loss"], record["val_loss"])
    });
    Run { bits: bits.collect(), losses: losses.collect(), told: told[0] }
}

#[test]
fn a_run_by_auto_has_the_bits_of_the_algorithm_that_it_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let auto = run(&path("auto"), AllReduceAlgorithm::Auto, (4, 2), 2);
    let told = auto.told.unwrap();
    assert_eq!(told.algorithm, Algorithm::Hierarchical);
    assert_eq!(told.to_string(), "all-reduce hierarchical (auto: 0.1 MiB over 4 ranks on 2 nodes)");
    let named = run(&path("named"), AllReduceAlgorithm::Hierarchical, (4, 2), 2);
    assert!(named.bits == auto.bits && named.losses == auto.losses, "{:?} is not {:?}", auto.losses, named.losses);
    assert_eq!(named.told, None, "nothing was chosen");
    let tree = run(&path("tree"), AllReduceAlgorithm::Tree, (4, 2), 2);
    assert!(tree.bits != auto.bits, "the tree has the same bits, so this test shows nothing");
}

/// Regression test: the plan named the configuration's algorithm, and the group summed by its own.
#[test]
fn a_group_for_another_algorithm_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let check = |group: AlgorithmChoice, all_reduce: AllReduceAlgorithm, expected: &str| {
        let out = Some(folder.path().join(group.to_string()));
        let config =
            TrainConfig { all_reduce, size: Some(8), batch: Some(4), epochs: 1, out, ..TrainConfig::default() };
        let ranks = groups(2, 1, group).into_iter().map(|group| {
            let config = config.clone();
            let data = TrainingData::new(Arc::new(Colours(16)), Arc::new(Colours(8)));
            std::thread::spawn(move || {
                let cpu = Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap();
                let outcome = Trainer::new(config, Arc::new(cpu)).group(group).fit("net", &net, &data);
                outcome.err().map_or_else(String::new, |error| error.to_string())
            })
        });
        for rank in ranks.collect::<Vec<_>>() {
            assert_eq!(rank.join().unwrap(), expected, "{group} and {all_reduce:?}");
        }
    };
    let ring = "all_reduce ring: the group was made for tree: make it with this `all_reduce`, too";
    check(Algorithm::Tree.into(), AllReduceAlgorithm::Ring, ring);
    let auto = "all_reduce auto: the group was made for direct: make it with this `all_reduce`, too";
    check(Algorithm::Direct.into(), AllReduceAlgorithm::Auto, auto);
    check(Algorithm::Ring.into(), AllReduceAlgorithm::Ring, "");
}

#[test]
fn a_run_resumed_on_other_ranks_chooses_anew() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    run(&out, AllReduceAlgorithm::Auto, (4, 2), 1);
    let told = run(&out, AllReduceAlgorithm::Auto, (2, 2), 2).told.unwrap();
    assert_eq!((told.algorithm, told.ranks, told.nodes), (Algorithm::Tree, 2, 2));
    let config = std::fs::read_to_string(out.join("config.toml")).unwrap();
    assert!(config.contains("all_reduce = \"auto\""), "{config}");
}
