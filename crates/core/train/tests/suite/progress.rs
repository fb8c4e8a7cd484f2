//! The charts of a run's progress, and the confusion matrix that callbacks are given.

use std::fs::read_to_string;
use std::path::Path;
use std::sync::Arc;

use crate::common::Colours;
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_graph::Tensor;
use enmasse_train::{
    Callback, CallbackResult, Confusion, Control, EpochRecord, Evaluation, RunPaths, TrainConfig, Trainer, TrainingData,
};

/// Images to validate on. Classes take turns, so that three classes have 6, 6 and 5 of them.
const VALIDATION: usize = 17;

fn net(x: Tensor, classes: usize) -> Tensor {
    x.flatten().linear("fc", classes)
}

fn config(out: &Path) -> TrainConfig {
    TrainConfig {
        epochs: 3,
        batch: Some(2),
        shards: Some(3),
        size: Some(8),
        lr: 3e-5,
        out: Some(out.to_owned()),
        ..TrainConfig::default()
    }
}

/// Keeps the records of epochs, and their confusion matrices.
#[derive(Default)]
struct Watch {
    records: Vec<EpochRecord>,
    confusions: Vec<Confusion>,
}

impl Callback for Watch {
    fn on_validation_end(&mut self, found: &Evaluation, _: &mut Control) -> CallbackResult {
        self.confusions.extend(found.confusion.clone());
        Ok(())
    }

    fn on_train_epoch_end(&mut self, record: &EpochRecord, _: &mut Control) -> CallbackResult {
        self.records.push(record.clone());
        Ok(())
    }
}

/// What each rank is told.
fn run(config: &TrainConfig, ranks: usize) -> Vec<Watch> {
    let data = TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(VALIDATION)));
    let told = enmasse_launch::spawn(ranks, |group| {
        let mut watch = Watch::default();
        let device = Arc::new(Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap());
        let result = Trainer::new(config.clone(), device).group(group).callback(&mut watch).fit("net", &net, &data);
        result.map(|_| watch)
    });
    told.unwrap()
}

#[test]
fn every_number_of_ranks_confuses_the_same_samples() {
    let folder = tempfile::tempdir().unwrap();
    let one = run(&config(&folder.path().join("1")), 1).remove(0);
    assert_eq!(one.confusions.len(), 3);
    for (confusion, record) in one.confusions.iter().zip(&one.records) {
        let rows = (0..3).map(|truth| (0..3).map(|predicted| confusion.count(truth, predicted)).sum::<u64>());
        assert_eq!(rows.collect::<Vec<_>>(), [6, 6, 5], "each sample once");
        let top_k_correct: u64 = (0..3).map(|class| confusion.count(class, class)).sum();
        assert_eq!(Some(top_k_correct as f64 / VALIDATION as f64), record.val_accuracy);
    }
    assert!(one.confusions[0] != one.confusions[2], "a run that learns slowly: {:?}", one.confusions);
    for ranks in [2, 3] {
        for told in run(&config(&folder.path().join(ranks.to_string())), ranks) {
            assert_eq!(told.confusions, one.confusions, "{ranks} ranks");
        }
    }
}

#[test]
fn charts_of_a_resumed_run_are_those_of_all_epochs() {
    let folder = tempfile::tempdir().unwrap();
    let paths = RunPaths::new(folder.path());
    let mut records = run(&TrainConfig { epochs: 2, ..config(folder.path()) }, 2).remove(0).records;
    let check = |records: &[EpochRecord]| {
        let curves = read_to_string(paths.training_curves()).unwrap();
        let lines = curves.lines().filter(|line| line.contains("class=\"validation-line\""));
        let lengths: Vec<usize> = lines.map(|line| line.matches(['M', 'L']).count()).collect();
        assert_eq!(lengths, [records.len(); 2], "loss and accuracy of each epoch");
        let best = records.iter().rfind(|record| record.best).unwrap();
        let matrix = read_to_string(paths.confusion_matrix()).unwrap();
        let top_k_correct = (best.val_accuracy.unwrap() * VALIDATION as f64).round();
        assert!(matrix.contains(&format!("confusion matrix of epoch {}<", best.epoch + 1)), "{records:?}");
        assert!(matrix.contains(&format!(": {top_k_correct} of {VALIDATION} samples")), "{records:?}");
    };
    check(&records);
    records.extend(run(&TrainConfig { epochs: 5, resume: true.into(), ..config(folder.path()) }, 1).remove(0).records);
    assert_eq!(records.len(), 5);
    check(&records);
}
