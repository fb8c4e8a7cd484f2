//! Fine-tuning: the first epoch trains the head alone, on features, and later ones the layers that were asked for.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::Colours;
use enmasse_comm::Group;
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_graph::{Conv, Tensor};
use enmasse_train::{
    Callback, CallbackResult, Checkpoint, ClassWeights, Control, FineTune, Progress, RunPaths, ScheduleKind, Stop,
    StopRequests, TrainConfig, TrainError, Trainer, TrainingData,
};

fn net(x: Tensor, classes: usize) -> Tensor {
    let x = x.conv2d("conv1", Conv::new(8, 3).no_bias()).batch_norm("bn1").relu();
    let x = x.conv2d("layer1.conv", Conv::new(8, 3).no_bias()).batch_norm("layer1.bn").relu();
    x.adaptive_avg_pool([1, 1]).flatten().dropout("drop", 0.5).linear("fc", classes)
}

fn data() -> TrainingData {
    TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17)))
}

fn trainer<'a>(config: TrainConfig) -> Trainer<'a> {
    Trainer::new(config, Arc::new(Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap()))
}

/// Weights of an epoch of training, as a file in `folder`.
fn weights(folder: &Path) -> PathBuf {
    let path = folder.join("net.safetensors");
    let mut trainer = trainer(config(&folder.join("first"), 1));
    trainer.fit("net", &net, &data()).unwrap();
    trainer.save(&path).unwrap();
    path
}

fn config(out: &Path, epochs: usize) -> TrainConfig {
    TrainConfig {
        epochs,
        shards: Some(4),
        // The learning rate at a step must not depend on where the run ends.
        schedule: ScheduleKind::Constant,
        batch: Some(3),
        size: Some(8),
        resume: RunPaths::new(out).is_resumable().into(),
        out: Some(out.to_owned()),
        ..TrainConfig::default()
    }
}

fn tuned(out: &Path, weights: &Path, fine_tune: FineTune, epochs: usize) -> TrainConfig {
    TrainConfig { fine_tune: Some(fine_tune), weights: Some(weights.to_owned()), ..config(out, epochs) }
}

/// Trains on ranks, and returns the tensors of the last checkpoint.
fn train(config: &TrainConfig, ranks: usize) -> HashMap<String, Vec<f32>> {
    std::thread::scope(|scope| {
        let rank = |group: Group| {
            let fit = move || trainer(config.clone()).group(group).fit("net", &net, &data()).map(|_| ());
            scope.spawn(fit)
        };
        let ranks: Vec<_> = Group::threads(ranks).unwrap().into_iter().map(rank).collect();
        ranks.into_iter().for_each(|rank| rank.join().unwrap().unwrap());
    });
    let paths = RunPaths::new(config.out.clone().unwrap());
    let checkpoint = Checkpoint::load(&paths.last_checkpoint()).unwrap();
    checkpoint.tensors.into_iter().map(|tensor| (tensor.name, tensor.values)).collect()
}

/// The names of tensors whose values differ, without the optimiser's and without averages.
fn changed(before: &HashMap<String, Vec<f32>>, after: &HashMap<String, Vec<f32>>) -> Vec<String> {
    let mut names: Vec<String> = (before.iter())
        .filter(|(name, values)| after.get(*name).is_some_and(|after| after != *values))
        .map(|(name, _)| name.clone())
        .filter(|name| !name.starts_with("optimizer."))
        .collect();
    names.sort_unstable();
    names
}

fn records(out: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(RunPaths::new(out).metrics()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_head_is_the_same_bits_on_any_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let weights = weights(folder.path());
    let run = |name: &str, ranks: usize| {
        let out = folder.path().join(name);
        // An average begins with the head, too.
        train(&TrainConfig { ema: Some(0.5), ..tuned(&out, &weights, FineTune::Head, 10) }, ranks)
    };
    let alone = run("1", 1);
    for ranks in 2..=4 {
        assert_eq!(run(&ranks.to_string(), ranks), alone, "{ranks} ranks");
    }
    let before = enmasse_weights::read(&weights).unwrap().tensors;
    let before: HashMap<_, _> = before.into_iter().map(|tensor| (tensor.name, tensor.values)).collect();
    assert_eq!(changed(&before, &alone), ["fc.bias", "fc.weight"]);
    assert_eq!((&alone["ema.fc.weight"], &alone["ema.conv1.weight"]), (&alone["fc.weight"], &alone["conv1.weight"]));
    let records = records(&folder.path().join("1"));
    assert_eq!(records.len(), 1, "the head takes one epoch");
    assert_eq!((&records[0]["train_accuracy"], &records[0]["val_accuracy"]), (&1.0.into(), &1.0.into()));
    assert_eq!((&records[0]["epoch"], &records[0]["learning_rate"]), (&0.into(), &0.0.into()));
    let done = run("1", 1);
    assert_eq!(done, alone, "a finished run stays as it is");
}

/// Of the three classes one has an image less.
#[test]
fn weights_of_classes_are_those_of_the_head() {
    let folder = tempfile::tempdir().unwrap();
    let weights = weights(folder.path());
    let head = |name: &str, class_weights: Option<ClassWeights>| {
        let out = folder.path().join(name);
        train(&TrainConfig { class_weights, ..tuned(&out, &weights, FineTune::Head, 1) }, 1)
    };
    let plain = head("plain", None);
    let balanced = head("balanced", Some(ClassWeights::Balanced));
    assert_eq!(changed(&plain, &balanced), ["fc.bias", "fc.weight"]);
}

#[test]
fn later_epochs_train_the_layers_that_were_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let weights = weights(folder.path());
    let head = train(&tuned(&folder.path().join("head"), &weights, FineTune::Head, 1), 1);
    let check = |name: &str, fine_tune: FineTune, freeze_bn: bool, expected: &[&str]| {
        let out = folder.path().join(name);
        let config = TrainConfig { freeze_bn, ..tuned(&out, &weights, fine_tune, 2) };
        let after = train(&config, 1);
        assert_eq!(changed(&head, &after), expected, "{name}");
        assert_eq!(records(&out).len(), 2);
        assert_eq!(records(&out)[1]["learning_rate"], 0.03, "warm-up and schedule begin after the head");
    };
    let upper = ["fc.bias", "fc.weight", "layer1.bn.bias", "layer1.bn.weight", "layer1.conv.weight"];
    let all = [&["bn1.bias", "bn1.weight", "conv1.weight"][..], &upper].concat();
    check("kept", FineTune::All, true, &all);
    check("last", FineTune::Last(1), true, &upper);
    let statistics = ["layer1.bn.running_mean", "layer1.bn.running_var"];
    let mut measured = [&upper[..], &statistics].concat();
    measured.sort_unstable();
    check("measured", FineTune::Last(1), false, &measured);
}

#[test]
fn a_run_goes_on_after_the_head_on_another_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let weights = weights(folder.path());
    let moving = folder.path().join("moving");
    let still = folder.path().join("still");
    let rates = |out: &Path, epochs: usize| TrainConfig {
        layer_decay: 0.5,
        head_lr_mult: 2.0,
        ..tuned(out, &weights, FineTune::All, epochs)
    };
    let expected = train(&rates(&still, 3), 1);
    train(&rates(&moving, 1), 2);
    assert_eq!(train(&rates(&moving, 3), 4), expected);
}

#[test]
fn what_cannot_be_tuned_is_refused_before_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let refused = |model: &dyn Fn(Tensor, usize) -> Tensor, config: TrainConfig| -> TrainError {
        trainer(config).fit("net", &model, &data()).unwrap_err()
    };
    let weights = weights(folder.path());
    let convolutional =
        |x: Tensor, classes| x.conv2d("conv", Conv::new(classes, 3)).adaptive_avg_pool([1, 1]).flatten();
    let error = refused(&convolutional, tuned(&out, &weights, FineTune::All, 2)).to_string();
    assert_eq!(error, "the model does not end in a linear layer, whose input would be its features, but in conv");
    let without = TrainConfig { weights: None, ..tuned(&out, &weights, FineTune::Head, 2) };
    let error = refused(&net, without).to_string();
    assert_eq!(error, "fine_tune head: needs `weights` or `pretrained` to begin with");
    assert!(!RunPaths::new(&out).is_resumable());
}

/// A request to stop while features are computed saves a run that trains the head when it goes on.
#[test]
fn a_run_that_is_stopped_before_its_head_begins_with_it_again() {
    struct Stopper(StopRequests);
    impl Callback for Stopper {
        fn on_validation_batch_end(&mut self, _: &Progress, _: &mut Control) -> CallbackResult {
            self.0.ask(Stop::End);
            Ok(())
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let weights = weights(folder.path());
    let stopped = folder.path().join("stopped");
    let still = folder.path().join("still");
    let requests = StopRequests::default();
    let trainer = trainer(tuned(&stopped, &weights, FineTune::All, 2)).stop_on(requests.clone());
    let ended = trainer.callback(Stopper(requests)).fit("net", &net, &data());
    assert!(matches!(ended, Err(TrainError::Stopped { stop: Stop::End, epoch: 0, samples: 0 })), "{ended:?}");
    let expected = train(&tuned(&still, &weights, FineTune::All, 2), 1);
    assert_eq!(train(&tuned(&stopped, &weights, FineTune::All, 2), 1), expected);
}
