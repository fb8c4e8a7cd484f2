//! A run with averages of the weights: validation and the weights of each epoch use them, checkpoints hold both, and resuming
//! gives the same bits.

use std::path::Path;
use std::sync::Arc;

use crate::common::Colours;
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_data::{DecodePool, EvalLoader, Sharding};
use enmasse_datasets::DataKind;
use enmasse_graph::{Conv, Tensor};
use enmasse_image::EvalTransform;
use enmasse_train::{
    Callback, CallbackResult, Checkpoint, Classifier, Control, EpochPosition, EpochRecord, NamedTensor, Preparation,
    RunPaths, TrainConfig, Trainer, TrainingData, evaluate, load_weights,
};

fn net(x: Tensor, classes: usize) -> Tensor {
    let x = x.conv2d("conv", Conv::new(4, 3).no_bias()).batch_norm("bn").relu();
    x.adaptive_avg_pool([2, 2]).flatten().linear("fc", classes)
}

fn config(out: &Path) -> TrainConfig {
    TrainConfig {
        epochs: 2,
        batch: Some(4),
        size: Some(8),
        lr: 0.05,
        ema: Some(0.75),
        check_ranks: true,
        out: Some(out.to_owned()),
        ..TrainConfig::default()
    }
}

struct Records<'a>(&'a mut Vec<EpochRecord>);

impl Callback for Records<'_> {
    fn on_train_epoch_end(&mut self, record: &EpochRecord, _: &mut Control) -> CallbackResult {
        self.0.push(record.clone());
        Ok(())
    }
}

/// Trains on two ranks and returns the records of the first.
fn fit(config: &TrainConfig) -> Vec<EpochRecord> {
    let data = TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17)));
    let ranks = enmasse_launch::spawn(2, |group| {
        let mut records = Vec::new();
        let cpu = Arc::new(Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap());
        let mut trainer = Trainer::new(config.clone(), cpu).group(group).callback(Records(&mut records));
        let done = trainer.fit("net", &net, &data);
        drop(trainer);
        done.map(|_| records)
    });
    ranks.unwrap().swap_remove(0)
}

fn last(out: &Path) -> Checkpoint {
    Checkpoint::load(&RunPaths::new(out).last_checkpoint()).unwrap()
}

/// The tensors whose names have this prefix, without it.
fn tensors(all: &[NamedTensor], beginning: &str) -> Vec<NamedTensor> {
    let strip = |tensor: &NamedTensor| {
        Some(NamedTensor { name: tensor.name.strip_prefix(beginning)?.into(), ..tensor.clone() })
    };
    all.iter().filter_map(strip).collect()
}

#[test]
fn a_run_is_evaluated_by_its_averages_and_keeps_both() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let records = fit(&TrainConfig { export_every: 1, ..config(&out) });
    let all = last(&out).tensors;
    let averages = tensors(&all, "ema.");
    let names: Vec<&str> = averages.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(
        names,
        ["conv.weight", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var", "fc.weight", "fc.bias"]
    );
    for average in &averages {
        let weight = all.iter().find(|tensor| tensor.name == average.name).unwrap();
        assert_ne!(weight.values, average.values, "{}", average.name);
    }
    // Other programs get the averages, under the usual names.
    let file = load_weights(&RunPaths::new(&out).epoch_weights(1)).unwrap();
    for average in &averages {
        assert_eq!(file.iter().find(|tensor| tensor.name == average.name), Some(average));
    }
    assert_eq!(file.len(), averages.len());

    let preparation = Preparation::new(&config(&out), DataKind::Folder);
    let classifier = Classifier::open(&RunPaths::new(&out).last_checkpoint(), None, &preparation, &[]).unwrap();
    assert!(classifier.averaged);
    let cpu = Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap();
    let mut program = classifier.program(&net, &cpu, 4).unwrap();
    let pool = DecodePool::new(1).unwrap();
    let loader = EvalLoader::new(&pool, Arc::new(Colours(17)), EvalTransform::new(8), Sharding::one(0, 1, 4)).unwrap();
    let found = evaluate(program.as_mut(), &loader, 17, None, EpochPosition::default(), &mut ()).unwrap();
    assert_eq!(found.accuracy, records[1].val_accuracy);
    assert!((found.loss - records[1].val_loss).abs() < 1e-6, "{found:?} {records:?}");
}

#[test]
fn a_run_resumed_in_the_middle_of_an_epoch_ends_with_the_same_averages() {
    for config in [config, with_lookahead] {
        let folder = tempfile::tempdir().unwrap();
        let [whole, cut] = ["whole", "cut"].map(|name| folder.path().join(name));
        fit(&config(&whole));
        // An epoch has six steps: the run stops two steps into the second one.
        fit(&TrainConfig { max_steps: Some(8), ..config(&cut) });
        fit(&TrainConfig { resume: true.into(), ..config(&cut) });
        assert_eq!(last(&cut).tensors, last(&whole).tensors);
    }
}

/// Three meetings of weights and slow weights, the last after the last step. The slow weights get slower.
fn with_lookahead(out: &Path) -> TrainConfig {
    let (lookahead, max_steps) = (Some(4), Some(12));
    TrainConfig { ema: None, lookahead, lookahead_alpha: 0.25, lookahead_power: 1.0, max_steps, ..config(out) }
}

#[test]
fn weights_go_on_from_where_they_meet_slow_weights() {
    let folder = tempfile::tempdir().unwrap();
    let check = |name: &str, config: fn(&Path) -> TrainConfig, met: bool| {
        let out = folder.path().join(name);
        fit(&config(&out));
        let all = last(&out).tensors;
        let slow = tensors(&all, "ema.");
        let weights: Vec<NamedTensor> =
            slow.iter().filter_map(|slow| all.iter().find(|tensor| tensor.name == slow.name).cloned()).collect();
        assert_eq!(weights == slow, met, "{name}");
        weights
    };
    let slow = check("slow", with_lookahead, true);
    check("between", |out| TrainConfig { max_steps: Some(11), ..with_lookahead(out) }, false);
    // Slow weights that go all the way change nothing.
    let whole = |out: &Path| TrainConfig { lookahead_alpha: 1.0, ..with_lookahead(out) };
    let out = folder.path().join("plain");
    fit(&TrainConfig { ema: None, max_steps: Some(12), ..config(&out) });
    let plain = last(&out).tensors;
    for found in check("whole", whole, true) {
        assert_eq!(plain.iter().find(|tensor| tensor.name == found.name), Some(&found));
    }
    assert_ne!(slow, check("again", whole, true));
}

#[test]
fn a_run_from_weights_with_averages_starts_from_the_averages() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    fit(&config(&first));
    // Everything except the classifier is frozen, and its average does not change.
    let weights = Some(RunPaths::new(&first).last_checkpoint());
    fit(&TrainConfig { weights, freeze_layers: true, max_steps: Some(2), ..config(&second) });
    let (from, to) = (last(&first).tensors, last(&second).tensors);
    let (from, averages) = (tensors(&from, "ema."), tensors(&to, "ema."));
    for name in ["conv.weight", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"] {
        let values = |tensors: &[NamedTensor]| tensors.iter().find(|t| t.name == name).unwrap().values.clone();
        assert_eq!(values(&averages), values(&from), "{name}");
        assert_eq!(values(&to), values(&from), "{name}");
    }
}
