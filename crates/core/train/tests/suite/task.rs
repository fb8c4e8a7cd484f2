//! A task of a program's own: two values of each image, which is evaluated, resumed and kept as classification is.

use std::path::Path;
use std::sync::Arc;

use crate::fit::cpu;
use enmasse_data::{DataError, Dataset};
use enmasse_graph::{Loss, PerSample, TargetKind, Tensor};
use enmasse_image::{Image, Normalization};
use enmasse_train::{
    Augmentation, Balance, Best, Callback, CallbackResult, Checkpoint, Classifier, Control, Direction, DoneRecord,
    EpochRecord, Flip, Kept, Preparation, RunEvent, RunPaths, ScheduleKind, Task, TaskMetric, TrainConfig, Trainer,
    TrainingData,
};

/// Images of a left and a right half, each of one grey with some noise. The targets are the two greys, from 0 to 1.
struct Halves(usize);

impl Halves {
    fn greys(index: usize) -> [usize; 2] {
        [index * 7919 % 200, index * 104_729 % 200].map(|grey| grey + 20)
    }
}

impl Dataset for Halves {
    fn len(&self) -> usize {
        self.0
    }
    fn label(&self, _: usize) -> usize {
        0
    }
    fn read(&self, index: usize) -> Result<Image, DataError> {
        let greys = Halves::greys(index);
        let pixel = |i: usize| greys[i / 3 % 8 / 4] + (index + i * 31) % 5;
        Ok(Image::new(8, 8, (0..192).map(|i| pixel(i) as u8).collect())?)
    }
    fn targets(&self, index: usize) -> Vec<f32> {
        Halves::greys(index).map(|grey| grey as f32 / 255.0).into()
    }
}

#[derive(Debug)]
struct Greys;

fn error(outputs: Tensor, targets: Tensor) -> Tensor {
    outputs + targets.affine(-1.0, 0.0)
}

fn squared(outputs: Tensor, targets: Tensor) -> Tensor {
    error(outputs, targets).power(2.0).sum_classes()
}

impl Task for Greys {
    fn target(&self) -> TargetKind {
        TargetKind::Values(2)
    }
    fn outputs(&self) -> usize {
        2
    }
    fn loss(&self, _: &TrainConfig) -> Loss {
        Loss::Custom(PerSample::new(squared))
    }
    fn metrics(&self) -> Vec<TaskMetric> {
        let absolute = |x: Tensor, y: Tensor| error(x, y).power(2.0).power(0.5).sum_classes();
        vec![TaskMetric { name: "mae".into(), direction: Direction::Lower, function: PerSample::new(absolute) }]
    }
}

fn net(x: Tensor, outputs: usize) -> Tensor {
    x.adaptive_avg_pool([2, 2]).flatten().linear("fc", outputs)
}

/// 49 images in batches of eight places: one is left, for two shards.
fn config(out: &Path) -> TrainConfig {
    TrainConfig {
        epochs: 4,
        batch: Some(4),
        shards: Some(2),
        size: Some(8),
        augment: Some(Augmentation::None),
        flip: Some(Flip::Chance(0.0)),
        lr: 0.05,
        momentum: 0.5,
        schedule: ScheduleKind::Constant,
        out: Some(out.to_owned()),
        resume: out.exists().into(),
        ..TrainConfig::default()
    }
}

fn data(train: usize, validation: usize) -> TrainingData {
    TrainingData::new(Arc::new(Halves(train)), Arc::new(Halves(validation)))
}

#[derive(Default)]
struct Records(Vec<EpochRecord>);

impl Callback for Records {
    fn on_train_epoch_end(&mut self, record: &EpochRecord, _: &mut Control) -> CallbackResult {
        self.0.push(record.clone());
        Ok(())
    }
}

/// What rank 0 has in the end: the records of epochs, that of the run, and the outputs for 17 images.
fn fit(config: &TrainConfig, ranks: usize) -> (Vec<EpochRecord>, DoneRecord, Vec<Vec<f64>>) {
    let data = data(49, 17);
    let found = enmasse_launch::spawn(ranks, |group| {
        let mut records = Records::default();
        let mut trainer = Trainer::new(config.clone(), cpu(1)).group(group).task(Greys).callback(&mut records);
        let done = trainer.fit("net", &net, &data)?;
        let outputs = trainer.predict(&data.validation)?;
        drop(trainer);
        Ok::<_, enmasse_train::TrainError>((records.0, done, outputs))
    });
    found.unwrap().remove(0)
}

fn last(out: &Path) -> Checkpoint {
    Checkpoint::load(&RunPaths::new(out).last_checkpoint()).unwrap()
}

#[test]
fn an_evaluation_without_classes_keeps_the_outputs() {
    let folder = tempfile::tempdir().unwrap();
    let config = TrainConfig { epochs: 1, ..config(&folder.path().join("run")) };
    let data = data(49, 17);
    let found = enmasse_launch::spawn(2, |group| {
        let mut trainer = Trainer::new(config.clone(), cpu(1)).group(group).task(Greys);
        trainer.fit("net", &net, &data)?;
        let kept = trainer.validate_keeping(&data, Kept { mistakes: true, scores: true })?;
        Ok::<_, enmasse_train::TrainError>((kept, trainer.predict(&data.validation)?))
    });
    for (kept, outputs) in found.unwrap() {
        assert_eq!((kept.accuracy, kept.mistakes), (None, None));
        let scores = kept.scores.unwrap();
        let rows: Vec<Vec<f64>> =
            scores.samples().map(|sample| sample.logits.iter().map(|&output| f64::from(output)).collect()).collect();
        assert_eq!(rows, outputs);
    }
}

/// The mean over the 17 images of what the outputs miss.
fn mean_error(outputs: &[Vec<f64>]) -> f64 {
    let missed = |(index, row): (usize, &Vec<f64>)| -> f64 {
        let targets = Halves(17).targets(index);
        row.iter().zip(targets).map(|(output, target)| (output - f64::from(target)).powi(2)).sum()
    };
    outputs.iter().enumerate().map(missed).sum::<f64>() / 17.0
}

#[test]
fn values_are_learnt_on_any_ranks_and_after_a_stop() {
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("alone");
    let (records, done, outputs) = fit(&config(&alone), 1);
    let end = records.last().unwrap();
    assert!(end.metrics["val_mae"] < 0.04, "{records:?}");
    // Evaluation counts each of the 17 images once, and predictions are the outputs themselves.
    assert!((end.val_loss - mean_error(&outputs)).abs() < 1e-6 * end.val_loss.max(1e-3), "{end:?} {outputs:?}");
    let weights = last(&alone);
    let training = |records: &[EpochRecord]| -> Vec<_> {
        records.iter().map(|record| (record.train_loss, record.metrics["train_mae"])).collect()
    };
    let (others, _, other_outputs) = fit(&config(&folder.path().join("two")), 2);
    assert_eq!((training(&others), other_outputs), (training(&records), outputs));
    assert_eq!(last(&folder.path().join("two")).tensors, weights.tensors);
    // In an epoch and at its end, with other ranks each time.
    let out = folder.path().join("stopped");
    for (ranks, most) in [(1, 6), (2, 7), (2, 16)] {
        fit(&TrainConfig { max_steps: Some(most), ..config(&out) }, ranks);
    }
    let (rest, resumed, _) = fit(&config(&out), 1);
    assert_eq!(last(&out).tensors, weights.tensors);
    assert_eq!(training(&rest), training(&records)[2..]);
    assert_eq!(resumed.best, done.best);
}

/// Hardly anything is learnt here, so training sees the loss that validation sees, on the same images.
#[test]
fn the_last_batch_counts_by_its_samples() {
    let folder = tempfile::tempdir().unwrap();
    let data = data(49, 49);
    let config = TrainConfig { lr: 1e-9, epochs: 1, ..config(&folder.path().join("run")) };
    let mut records = Records::default();
    Trainer::new(config, cpu(1)).task(Greys).callback(&mut records).fit("net", &net, &data).unwrap();
    let record = &records.0[0];
    assert!((record.train_loss - record.val_loss).abs() < 1e-6, "{record:?}");
    assert!((record.metrics["train_mae"] - record.metrics["val_mae"]).abs() < 1e-6, "{record:?}");
}

/// What belongs to classes is absent from files: no value that is not a number stands for it.
#[test]
fn a_run_has_nothing_of_classes() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let (records, done, _) = fit(&TrainConfig { mixup: 0.8, ..config(&out) }, 2);
    let best = records.iter().map(|record| record.val_loss).fold(f64::INFINITY, f64::min);
    assert_eq!(done.best, Best { metric: "val_loss".into(), value: Some(best) });
    let line = RunEvent::Epoch(&records[0]).to_line();
    assert!(line.contains("\"val_mae\":") && !line.contains("accuracy") && !line.contains("null"), "{line}");
    let line = RunEvent::Done(&done).to_line();
    assert!(line.starts_with(&format!("{{\"event\":\"done\",\"best_val_loss\":{best},")), "{line}");
    let paths = RunPaths::new(&out);
    let checkpoint = last(&out);
    assert_eq!((checkpoint.meta.best, checkpoint.meta.target), (done.best, TargetKind::Values(2)));
    assert_eq!(checkpoint.meta.classes, [] as [&str; 0]);
    for (path, expected) in [
        (paths.class_indices(), false),
        (paths.class_distribution(), false),
        (paths.confusion_matrix(), false),
        (paths.augmented(), true),
        (paths.training_curves(), true),
    ] {
        assert_eq!(path.exists(), expected, "{}", path.display());
    }
    let curves = std::fs::read_to_string(paths.training_curves()).unwrap();
    assert!(curves.contains(&format!("val_loss {best:.4}")) && !curves.contains("accuracy"), "{curves}");
    let best_epoch = Checkpoint::load(&paths.best_checkpoint()).unwrap().meta.epoch - 1;
    assert_eq!(records[best_epoch as usize].val_loss, best);
    // Nothing takes it for a classification.
    let normalization = Normalization { mean: vec![0.0; 3], std: vec![1.0; 3] };
    let preparation = Preparation { normalization, ..Preparation::of(&config(&out), &data(1, 1)) };
    let refused = Classifier::open(&out, None, &preparation, &[]).map(drop).unwrap_err().to_string();
    assert!(
        refused.ends_with("predicts 2 values of an image, not its class: use the program that trained it"),
        "{refused}"
    );
    let classes = ["a", "b"].map(str::to_owned).into();
    let halves = |count: usize| Arc::new(Halves(count));
    let of_classes = TrainingData::of_classes(classes, halves(49), halves(17));
    let resumed = Trainer::new(TrainConfig { epochs: 9, ..config(&out) }, cpu(1)).fit("net", &net, &of_classes);
    let refused = resumed.unwrap_err().to_string();
    assert!(refused.contains(" learns 2 values of each image, not classes: resume it as it was started"), "{refused}");
}

#[test]
fn values_that_a_sample_lacks_are_an_error() {
    struct Classes(Halves);
    impl Dataset for Classes {
        fn len(&self) -> usize {
            self.0.len()
        }
        fn label(&self, index: usize) -> usize {
            self.0.label(index)
        }
        fn read(&self, index: usize) -> Result<Image, DataError> {
            self.0.read(index)
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let data = TrainingData::new(Arc::new(Classes(Halves(8))), Arc::new(Halves(8)));
    let config = TrainConfig { epochs: 1, ..config(&folder.path().join("run")) };
    let error = Trainer::new(config, cpu(1)).task(Greys).fit("net", &net, &data).unwrap_err().to_string();
    assert!(error.contains("it has 0 values to predict, and the task takes 2"), "{error}");
}

#[test]
fn balanced_classes_need_classes() {
    let folder = tempfile::tempdir().unwrap();
    let config = TrainConfig { balance: Balance::Classes, ..config(&folder.path().join("run")) };
    let error = Trainer::new(config, cpu(1)).task(Greys).fit("net", &net, &data(8, 8)).unwrap_err().to_string();
    assert_eq!(error, "balance classes: has no effect on a task without classes: leave it out");
}
