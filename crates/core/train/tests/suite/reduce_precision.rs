//! Gradients that cross between nodes in 16 bits: a resumed run has the bits of one that was not interrupted, since the checkpoint
//! has what every rank's roundings have lost; and what becomes of that where the ranks are others.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use crate::common::Colours;
use enmasse_comm::{Group, Rendezvous, TransportChoice};
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_graph::Tensor;
use enmasse_train::{
    Callback, CallbackResult, Checkpoint, Control, ReducePrecision, RunPaths, Started, TrainConfig, Trainer,
    TrainingData,
};

const RESIDUAL: &str = "optimizer.reduce_residual.";

fn net(x: Tensor, classes: usize) -> Tensor {
    x.flatten().linear("fc1", 12).relu().linear("fc2", classes)
}

/// Ranks that share no memory, or threads that do.
fn groups(ranks: usize, transport: TransportChoice) -> Vec<Group> {
    if transport == TransportChoice::Auto {
        return Group::threads(ranks).unwrap();
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    let mut listener = Some(listener);
    let join = |rank: usize| {
        let mut rendezvous = Rendezvous::tcp(&address, rank, ranks).unwrap();
        rendezvous.transport = transport;
        rendezvous.listener = listener.take();
        std::thread::spawn(move || rendezvous.join().unwrap())
    };
    let threads: Vec<_> = (0..ranks).map(join).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

fn config(out: &Path, reduce_precision: ReducePrecision) -> TrainConfig {
    TrainConfig {
        reduce_precision,
        epochs: 3,
        batch: Some(4),
        size: Some(8),
        clip_norm: Some(0.5),
        check_ranks: true,
        drop_last: true,
        shards: Some(2),
        resume: out.exists().into(),
        out: Some(out.to_owned()),
        ..TrainConfig::default()
    }
}

/// What a resumed run says of the residuals in its checkpoint.
#[derive(Default)]
struct Told(Option<String>);

impl Callback for Told {
    fn on_fit_start(&mut self, started: &Started, _: &mut Control) -> CallbackResult {
        self.0.clone_from(&started.lost_residuals);
        Ok(())
    }
}

/// The last checkpoint of a run, or of the rest of it, and what rank 0 said.
fn run(config: &TrainConfig, ranks: usize, transport: TransportChoice) -> (Checkpoint, Option<String>) {
    let data = TrainingData::new(Arc::new(Colours(48)), Arc::new(Colours(17)));
    let told = std::thread::scope(|scope| {
        let rank = |group: Group| {
            let data = &data;
            scope.spawn(move || {
                let cpu = Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap();
                let mut told = Told::default();
                Trainer::new(config.clone(), Arc::new(cpu))
                    .group(group)
                    .callback(&mut told)
                    .fit("net", &net, data)
                    .unwrap();
                told.0
            })
        };
        let ranks: Vec<_> = groups(ranks, transport).into_iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>().remove(0)
    });
    let path = RunPaths::new(config.out.as_deref().unwrap()).last_checkpoint();
    (Checkpoint::load(&path).unwrap(), told)
}

fn bits(checkpoint: &Checkpoint) -> Vec<(&str, Vec<u32>)> {
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
    checkpoint.tensors.iter().map(|tensor| (tensor.name.as_str(), bits(&tensor.values))).collect()
}

#[test]
fn a_resumed_run_has_the_bits_of_one_that_was_not_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let plain = run(&config(&path("f32"), ReducePrecision::F32), 2, TransportChoice::Tcp).0;
    for precision in [ReducePrecision::Bf16, ReducePrecision::F16] {
        let whole = path(&format!("whole {precision}"));
        let cut = path(&format!("cut {precision}"));
        let (whole, _) = run(&config(&whole, precision), 2, TransportChoice::Tcp);
        // In the middle of an epoch of six steps.
        run(&TrainConfig { max_steps: Some(9), ..config(&cut, precision) }, 2, TransportChoice::Tcp);
        let (resumed, told) = run(&config(&cut, precision), 2, TransportChoice::Tcp);
        assert!(bits(&resumed) == bits(&whole), "{precision}");
        assert_eq!(told, None);
        assert!(bits(&plain) != bits(&whole), "{precision} rounds nothing");
        for rank in 0..2 {
            let name = format!("{RESIDUAL}{rank}.fc1.weight");
            let residual = whole.tensors.iter().find(|tensor| tensor.name == name).unwrap();
            assert!(residual.values.iter().any(|&value| value != 0.0), "{precision}: {name}");
        }
    }
}

#[test]
fn residuals_of_other_ranks_are_dropped_with_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let check = |name: &str, second: (ReducePrecision, usize, TransportChoice), expected: &str| {
        let out = folder.path().join(name);
        let first = TrainConfig { max_steps: Some(6), ..config(&out, ReducePrecision::Bf16) };
        let (ranks, transport) = if name == "none" { (2, TransportChoice::Auto) } else { (2, TransportChoice::Tcp) };
        run(&first, ranks, transport);
        let (precision, ranks, transport) = second;
        let (last, told) = run(&config(&out, precision), ranks, transport);
        assert_eq!(told.as_deref(), Some(expected), "{name}");
        let saved = last.tensors.iter().filter(|tensor| tensor.name.starts_with(RESIDUAL)).count();
        assert_eq!(saved > 0, expected.ends_with("begins at 0"), "{name}: {saved}");
    };
    let dropped = "what compressing gradients has lost on 2 ranks is dropped";
    check("one rank", (ReducePrecision::Bf16, 1, TransportChoice::Auto), dropped);
    check("one node", (ReducePrecision::Bf16, 2, TransportChoice::Auto), dropped);
    check("f32", (ReducePrecision::F32, 2, TransportChoice::Tcp), dropped);
    let missing = "what compressing gradients has lost is not in the checkpoint; it begins at 0";
    check("none", (ReducePrecision::Bf16, 2, TransportChoice::Tcp), missing);
}
