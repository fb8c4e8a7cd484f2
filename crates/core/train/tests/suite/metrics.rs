//! Metrics of a run: the same figures for any number of ranks, after a resume, and in an evaluation of its checkpoint.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::common::Colours;
use crate::unreadable::part;
use enmasse_cpu::{Cpu, CpuOptions};
use enmasse_data::{DecodePool, EvalLoader, Sharding};
use enmasse_graph::Tensor;
use enmasse_train::{
    Callback, CallbackResult, Classifier, Control, EpochPosition, EpochRecord, Evaluation, Kept, MetricName,
    Preparation, Progress, Stop, StopRequests, TrainConfig, TrainError, Trainer, TrainingData, evaluate,
    evaluate_keeping,
};

fn net(x: Tensor, classes: usize) -> Tensor {
    x.flatten().linear("fc", classes)
}

fn cpu() -> Arc<Cpu> {
    Arc::new(Cpu::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap())
}

fn config(out: &Path) -> TrainConfig {
    TrainConfig {
        epochs: 2,
        batch: Some(4),
        shards: Some(2),
        size: Some(8),
        metrics: vec![MetricName::Top(2), MetricName::GradientNorm],
        out: Some(out.to_owned()),
        ..TrainConfig::default()
    }
}

/// Keeps the records, and requests that the run stop after a step.
struct Watch {
    records: Vec<EpochRecord>,
    requests: StopRequests,
    stop_at: Option<u64>,
}

impl Callback for Watch {
    fn on_train_batch_end(&mut self, progress: &Progress, _: &mut Control) -> CallbackResult {
        if self.stop_at == Some(progress.optimizer_step) {
            self.requests.ask(Stop::Requeue);
        }
        Ok(())
    }

    fn on_train_epoch_end(&mut self, record: &EpochRecord, _: &mut Control) -> CallbackResult {
        self.records.push(record.clone());
        Ok(())
    }
}

fn data() -> TrainingData {
    TrainingData::new(Arc::new(Colours(50)), Arc::new(Colours(17)))
}

/// The records of rank 0.
fn run(config: &TrainConfig, ranks: usize, stop_at: Option<u64>) -> Vec<EpochRecord> {
    let data = data();
    let records = enmasse_launch::spawn(ranks, |group| {
        let requests = StopRequests::default();
        let mut watch = Watch { records: Vec::new(), requests: requests.clone(), stop_at };
        let device = cpu();
        let trainer = Trainer::new(config.clone(), device).group(group).stop_on(requests);
        let result = trainer.callback(&mut watch).fit("net", &net, &data);
        match result {
            Ok(_) | Err(TrainError::Stopped { .. }) => Ok(watch.records),
            Err(error) => Err(error),
        }
    });
    records.unwrap().remove(0)
}

fn metrics(records: &[EpochRecord]) -> Vec<BTreeMap<String, f64>> {
    records.iter().map(|record| record.metrics.clone()).collect()
}

#[test]
fn every_number_of_ranks_measures_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let one = run(&config(&folder.path().join("1")), 1, None);
    for record in &one {
        assert!(record.metrics.keys().eq(["train_gradient_norm", "train_top2", "val_top2"]));
        let [norm, train, val] = ["train_gradient_norm", "train_top2", "val_top2"].map(|name| record.metrics[name]);
        assert!(norm > 0.0 && norm.is_finite(), "{norm}");
        assert!((record.train_accuracy.unwrap()..=1.0).contains(&train), "{train}");
        assert!((record.val_accuracy.unwrap()..=1.0).contains(&val) && (val * 17.0).fract() == 0.0, "{val}");
    }
    assert_eq!(metrics(&run(&config(&folder.path().join("2")), 2, None)), metrics(&one));
    // A run stopped in the middle of its first epoch finally reports the whole epoch.
    let out = folder.path().join("stopped");
    assert_eq!(run(&config(&out), 2, Some(1)), []);
    let resumed = TrainConfig { resume: true.into(), ..config(&out) };
    assert_eq!(metrics(&run(&resumed, 1, None)), metrics(&one));
}

#[test]
fn a_metric_that_begins_in_the_middle_of_an_epoch_is_unknown_there() {
    let folder = tempfile::tempdir().unwrap();
    let without = TrainConfig { metrics: Vec::new(), ..config(folder.path()) };
    run(&without, 1, Some(1));
    let records = run(&TrainConfig { resume: true.into(), ..config(folder.path()) }, 1, None);
    let known = |record: &EpochRecord| record.metrics.values().map(|value| value.is_finite()).collect::<Vec<_>>();
    assert_eq!(records.iter().map(known).collect::<Vec<_>>(), [[false, false, true], [true, true, true]]);
}

#[test]
fn an_evaluation_measures_the_metrics_of_its_run() {
    let folder = tempfile::tempdir().unwrap();
    let last = run(&TrainConfig { epochs: 1, ..config(folder.path()) }, 1, None).remove(0);
    let data = data();
    let classifier =
        Classifier::open(folder.path(), None, &Preparation::new(&config(folder.path()), data.kind), &[]).unwrap();
    let mut program = classifier.program(&net, cpu().as_ref(), 4).unwrap();
    let pool = DecodePool::new(1).unwrap();
    let sharding = Sharding::one(0, 1, 4);
    let loader = EvalLoader::new(&pool, data.validation.clone(), classifier.transform.clone(), sharding).unwrap();
    let found = evaluate(program.as_mut(), &loader, 17, None, EpochPosition::default(), &mut ()).unwrap();
    assert_eq!(found.metrics, BTreeMap::from([("top2".to_owned(), last.metrics["val_top2"])]));
}

/// Those of a sample that cannot be read are missing.
#[test]
fn every_number_of_ranks_keeps_the_same_scores() {
    let folder = tempfile::tempdir().unwrap();
    run(&TrainConfig { epochs: 1, ..config(folder.path()) }, 1, None);
    let kept_by = |ranks: usize, kept: Kept| -> Vec<Evaluation> {
        let evaluated = enmasse_launch::spawn(ranks, |group| {
            let preparation = Preparation::new(&config(folder.path()), data().kind);
            let classifier = Classifier::open(folder.path(), None, &preparation, &[])?;
            let mut program = classifier.program(&net, cpu().as_ref(), 4)?;
            let pool = DecodePool::new(1)?;
            let sharding = Sharding::one(group.rank(), ranks, 4);
            let images = part("validation", 17, &[5]);
            let loader = EvalLoader::new(&pool, images, classifier.transform.clone(), sharding)?.skip_unreadable(true);
            let position = EpochPosition::default();
            evaluate_keeping(program.as_mut(), &loader, 17, Some(&group), position, kept, &mut ())
        });
        evaluated.unwrap()
    };
    let both = Kept { mistakes: true, scores: true };
    let alone = kept_by(1, both).remove(0);
    let scores = alone.scores.as_ref().unwrap();
    assert_eq!(scores.outputs(), alone.per_class.classes().len());
    let numbers: Vec<usize> = scores.samples().map(|sample| sample.index).collect();
    assert!(numbers.iter().copied().eq((0..17).filter(|&index| index != 5)), "{numbers:?}");
    let largest = |logits: &[f32]| (0..logits.len()).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
    let wrong = scores.samples().filter(|sample| largest(sample.logits) != sample.label).map(|sample| sample.index);
    let mut listed: Vec<usize> = alone.mistakes.as_ref().unwrap().iter().map(|mistake| mistake.index).collect();
    listed.sort_unstable();
    assert_eq!(wrong.collect::<Vec<_>>(), listed);
    for ranks in [2, 3] {
        for found in kept_by(ranks, both) {
            assert_eq!((&found.scores, &found.mistakes), (&alone.scores, &alone.mistakes), "{ranks}");
        }
    }
    assert_eq!(kept_by(2, Kept::default())[1].scores, None);
}
