//! Four shards hosted by one to four ranks: the same weights, bit by bit, over any transport.

use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::common::Colours;
use enmasse_comm::{Group, Rendezvous, TransportChoice};
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_graph::{Conv, Tensor};
use enmasse_train::{Checkpoint, RunPaths, ScheduleKind, TrainConfig, TrainError, Trainer, TrainingData};

/// A residual network at a small scale, with everything that could make ranks differ: batch norm, dropout, a projection.
fn resnet(x: Tensor, classes: usize) -> Tensor {
    let block = |x: Tensor, name: &str, channels, stride| {
        let layer = |part: &str| format!("{name}.{part}");
        let conv = |stride| Conv::new(channels, 3).stride(stride).padding(1).no_bias();
        let y = x.clone().conv2d(&layer("conv1"), conv(stride)).batch_norm(&layer("bn1")).relu();
        let y = y.conv2d(&layer("conv2"), conv(1)).batch_norm(&layer("bn2"));
        let down = Conv::new(channels, 1).stride(stride).no_bias();
        (y + x.conv2d(&layer("downsample.0"), down).batch_norm(&layer("downsample.1"))).relu()
    };
    let x = x.conv2d("conv1", Conv::new(8, 3).padding(1).no_bias()).batch_norm("bn1").relu();
    let x = block(block(x, "layer1", 8, 1), "layer2", 16, 2);
    x.adaptive_avg_pool([1, 1]).flatten().dropout("drop", 0.3).linear("fc", classes)
}

fn config(out: &Path, sync_bn: bool, epochs: usize) -> TrainConfig {
    TrainConfig {
        epochs,
        shards: Some(4),
        // The learning rate at a step must not depend on where the run ends.
        schedule: ScheduleKind::Constant,
        batch: Some(3),
        size: Some(8),
        sync_bn,
        resume: out.exists().into(),
        out: Some(out.to_owned()),
        ..TrainConfig::default()
    }
}

/// Ranks that connect over TCP, though they share a process.
fn tcp(ranks: usize) -> Vec<Group> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    let listener = Mutex::new(Some(listener));
    std::thread::scope(|scope| {
        let rank = |rank| {
            let (address, listener) = (&address, &listener);
            scope.spawn(move || {
                let mut rendezvous = Rendezvous::tcp(address, rank, ranks).unwrap();
                rendezvous.transport = TransportChoice::Tcp;
                rendezvous.listener = if rank == 0 { listener.lock().unwrap().take() } else { None };
                rendezvous.join().unwrap()
            })
        };
        let joining: Vec<_> = (0..ranks).map(rank).collect();
        joining.into_iter().map(|group| group.join().unwrap()).collect()
    })
}

/// BLAKE3 over every tensor of the checkpoint that the ranks of a run write.
fn train(out: &Path, groups: Vec<Group>, sync_bn: bool, epochs: usize) -> String {
    std::thread::scope(|scope| {
        let rank = |group: Group| {
            scope.spawn(move || -> Result<(), TrainError> {
                let data = TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17)));
                let device = Arc::new(Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap());
                Trainer::new(config(out, sync_bn, epochs), device)
                    .group(group)
                    .fit("resnet", &resnet, &data)
                    .map(|_| ())
            })
        };
        let ranks: Vec<_> = groups.into_iter().map(rank).collect();
        ranks.into_iter().for_each(|rank| rank.join().unwrap().unwrap());
    });
    let mut hasher = blake3::Hasher::new();
    for tensor in Checkpoint::load(&RunPaths::new(out).last_checkpoint()).unwrap().tensors {
        hasher.update(tensor.name.as_bytes());
        tensor.values.iter().for_each(|value| _ = hasher.update(&value.to_le_bytes()));
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

#[test]
fn weights_are_the_same_bits_on_any_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    for sync_bn in [false, true] {
        let run = |name: String, groups: Vec<Group>| train(&folder.path().join(name), groups, sync_bn, 2);
        let alone = run(format!("alone{sync_bn}"), vec![Group::single()]);
        for ranks in 2..=4 {
            let threads = run(format!("threads{ranks}{sync_bn}"), Group::threads(ranks).unwrap());
            let tcp = run(format!("tcp{ranks}{sync_bn}"), tcp(ranks));
            assert_eq!((&threads, &tcp), (&alone, &alone), "{ranks} ranks, SyncBatchNorm {sync_bn}");
        }
    }
}

#[test]
fn a_checkpoint_resumes_on_another_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let moving = folder.path().join("moving");
    let still = folder.path().join("still");
    let expected = train(&still, vec![Group::single()], false, 4);
    for (epochs, ranks) in [(1, 4), (2, 3), (3, 1)] {
        assert_ne!(train(&moving, Group::threads(ranks).unwrap(), false, epochs), expected);
    }
    assert_eq!(train(&moving, Group::threads(2).unwrap(), false, 4), expected);
}

#[test]
fn more_ranks_than_shards_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let data = TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17)));
    let group = Group::threads(5).unwrap().remove(0);
    let device = Arc::new(Cpu::new(CpuOptions::default()).unwrap());
    let config = config(&folder.path().join("run"), false, 1);
    let error = Trainer::new(config, device).group(group).fit("resnet", &resnet, &data).unwrap_err();
    assert_eq!(error.to_string(), "4 shards cannot be divided among 5 ranks: every rank hosts at least one");
}
