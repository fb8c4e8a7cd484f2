//! Runs on mixtures: the same weights on any number of ranks, and what the loader, the plan and the records have of them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::Colours;
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_data::Batch;
use enmasse_graph::Tensor;
use enmasse_train::{
    Callback, CallbackResult, Checkpoint, Control, EpochRecord, RunPaths, TrainConfig, TrainError, Trainer,
    TrainingData,
};

fn net(x: Tensor, classes: usize) -> Tensor {
    x.flatten().linear("fc", classes)
}

/// Four shards of three samples: pairs cross from one shard to the next.
fn config(out: &Path) -> TrainConfig {
    TrainConfig {
        epochs: 2,
        batch: Some(3),
        shards: Some(4),
        size: Some(8),
        mixup: 0.8,
        cutmix: 1.0,
        out: Some(out.to_owned()),
        ..TrainConfig::default()
    }
}

/// Keeps the records, and counts places that are mixed.
struct Watch {
    records: Vec<EpochRecord>,
    mixed: Arc<AtomicUsize>,
}

impl Callback for Watch {
    fn on_train_batch_start(&mut self, batch: &Batch, _: &mut Control) -> CallbackResult {
        self.mixed.fetch_add(batch.lambdas.iter().filter(|&&share| share < 1.0).count(), Ordering::Relaxed);
        Ok(())
    }

    fn on_train_epoch_end(&mut self, record: &EpochRecord, _: &mut Control) -> CallbackResult {
        self.records.push(record.clone());
        Ok(())
    }
}

/// The records of rank 0, the checkpoint, and how many places of all ranks were mixed.
fn fit(config: &TrainConfig, ranks: usize) -> Result<(Vec<EpochRecord>, Checkpoint, usize), String> {
    let data = TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17)));
    let mixed = Arc::new(AtomicUsize::new(0));
    let records = enmasse_launch::spawn(ranks, |group| {
        let device = Arc::new(Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap());
        let mut watch = Watch { records: Vec::new(), mixed: mixed.clone() };
        let result: Result<_, TrainError> =
            Trainer::new(config.clone(), device).group(group).callback(&mut watch).fit("net", &net, &data);
        result.map(|_| watch.records)
    });
    let records = records.map_err(|error| error.to_string())?.remove(0);
    let checkpoint = Checkpoint::load(&RunPaths::new(config.out.as_ref().unwrap()).last_checkpoint()).unwrap();
    Ok((records, checkpoint, mixed.load(Ordering::Relaxed)))
}

#[test]
fn mixtures_are_the_same_on_any_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, ranks: usize, config: &TrainConfig| {
        fit(&TrainConfig { out: Some(folder.path().join(name)), ..config.clone() }, ranks).unwrap()
    };
    let config = config(Path::new(""));
    let (records, checkpoint, mixed) = run("one", 1, &config);
    // Four batches of twelve in each of two epochs, of which few draws leave a pair as it is.
    assert!((60..=96).contains(&mixed), "{mixed}");
    for ranks in [2, 4] {
        let (others, other, other_mixed) = run(&ranks.to_string(), ranks, &config);
        assert_eq!((other.tensors, other_mixed), (checkpoint.tensors.clone(), mixed), "{ranks} ranks");
        let losses = |records: &[EpochRecord]| records.iter().map(|record| record.train_loss).collect::<Vec<_>>();
        assert_eq!(losses(&others), losses(&records), "{ranks} ranks");
    }
    let (plain, usual, none) = run("usual", 1, &TrainConfig { mixup: 0.0, cutmix: 0.0, ..config });
    assert_eq!(none, 0);
    assert_ne!(usual.tensors, checkpoint.tensors);
    // The entropy of the targets is part of the loss of training; validation has none of it.
    assert!(records[1].train_loss > plain[1].train_loss, "{records:?} {plain:?}");
}

#[test]
fn a_batch_of_one_has_no_partner() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let error = fit(&TrainConfig { batch: Some(1), shards: Some(1), ..config(&out) }, 1).unwrap_err();
    let expected = "a global batch of one image has none to mix it with: use a larger batch, or no mixup and cutmix";
    assert!(error.contains(expected), "{error}");
    assert!(!out.exists());
}
