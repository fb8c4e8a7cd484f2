//! Tasks other than one class of each image: several labels, numbers in units of their own, and classes with weights.

use std::path::Path;
use std::sync::Arc;

use crate::fit::cpu;
use enmasse_data::{DataError, Dataset};
use enmasse_graph::Tensor;
use enmasse_graph::losses::Asymmetric;
use enmasse_image::Image;
use enmasse_train::metrics::{LabelScores, RegressionFigures};
use enmasse_train::{
    Augmentation, Callback, CallbackResult, Classification, Control, EpochRecord, Flip, Monitor, MultiLabel,
    MultiLabelLoss, Regression, RegressionLoss, ScheduleKind, TargetStatistics, Task, TrainConfig, Trainer,
    TrainingData, balanced_weights,
};

/// Images of four quarters, each of which is bright or dark, with some noise.
struct Quarters {
    count: usize,
    targets: fn([usize; 4]) -> Vec<f32>,
}

impl Quarters {
    fn greys(index: usize) -> [usize; 4] {
        let random = |quarter: usize| (index * 7919 + quarter * 104_729 + index * index * 31) % 997;
        [0, 1, 2, 3].map(|quarter| {
            let grey = random(quarter) % 60;
            // The last is bright in a few images.
            if random(quarter + 4) % 10 < [5, 4, 6, 1][quarter] { grey + 160 } else { grey + 40 }
        })
    }
}

impl Dataset for Quarters {
    fn len(&self) -> usize {
        self.count
    }
    /// Whether the last quarter is bright.
    fn label(&self, index: usize) -> usize {
        (Quarters::greys(index)[3] >= 160).into()
    }
    fn read(&self, index: usize) -> Result<Image, DataError> {
        let greys = Quarters::greys(index);
        let pixel = |i: usize| greys[i / 96 * 2 + i / 12 % 2] + (index + i * 31) % 5;
        Ok(Image::new(8, 8, (0..192).map(|i| pixel(i) as u8).collect())?)
    }
    fn targets(&self, index: usize) -> Vec<f32> {
        (self.targets)(Quarters::greys(index))
    }
}

fn data(targets: fn([usize; 4]) -> Vec<f32>) -> TrainingData {
    let part = |count| Arc::new(Quarters { count, targets });
    TrainingData::new(part(160), part(48))
}

fn net(x: Tensor, outputs: usize) -> Tensor {
    x.adaptive_avg_pool([2, 2]).flatten().linear("fc", outputs)
}

fn config(out: &Path) -> TrainConfig {
    TrainConfig {
        epochs: 20,
        batch: Some(16),
        shards: Some(1),
        size: Some(8),
        augment: Some(Augmentation::None),
        flip: Some(Flip::Chance(0.0)),
        lr: 0.1,
        schedule: ScheduleKind::Cosine,
        out: Some(out.to_owned()),
        ..TrainConfig::default()
    }
}

#[derive(Default)]
struct Records(Vec<EpochRecord>);

impl Callback for Records {
    fn on_train_epoch_end(&mut self, record: &EpochRecord, _: &mut Control) -> CallbackResult {
        self.0.push(record.clone());
        Ok(())
    }
}

/// The records of the epochs, and the predictions for validation's images.
fn fit(task: impl Task + 'static, data: &TrainingData) -> (Vec<EpochRecord>, Vec<f64>) {
    let folder = tempfile::tempdir().unwrap();
    let mut records = Records::default();
    let mut trainer = Trainer::new(config(&folder.path().join("run")), cpu(1)).task(task);
    trainer = trainer.monitor(Monitor::lower("val_loss")).callback(&mut records);
    trainer.fit("net", &net, data).unwrap();
    let predictions = trainer.predict(&data.validation).unwrap().concat();
    drop(trainer);
    (records.0, predictions)
}

fn targets(data: &TrainingData) -> Vec<f32> {
    (0..data.validation.len()).flat_map(|index| data.validation.targets(index)).collect()
}

#[test]
fn several_labels_are_learnt_with_each_loss() {
    let names = ["a", "b", "c", "d"].map(str::to_owned);
    let data = data(|greys| greys.map(|grey| f32::from(grey >= 160)).into());
    let expected = targets(&data);
    let asymmetric = Asymmetric { gamma_negative: 2.0, ..Asymmetric::default() };
    for loss in [
        MultiLabelLoss::Binary,
        MultiLabelLoss::Weighted(vec![1.0, 1.5, 0.5, 9.0]),
        MultiLabelLoss::Focal { alpha: Some(0.25), gamma: 2.0 },
        MultiLabelLoss::Asymmetric(asymmetric),
    ] {
        let (records, predictions) = fit(MultiLabel::new(&names, loss.clone()), &data);
        let (first, last) = (&records[0], &records[19]);
        assert!(last.val_loss < 0.8 * first.val_loss, "{loss:?}: {records:?}");
        assert!(predictions.iter().all(|p| (0.0..=1.0).contains(p)), "{predictions:?}");
        let scores = LabelScores { scores: &predictions, targets: &expected, labels: 4 };
        let figures = scores.figures(&scores.best_thresholds());
        assert!(figures.map > Some(0.99) && figures.macro_f1 > Some(0.95), "{loss:?}: {figures:?}");
    }
}

/// Without their means and stds, the rate would be far too large for one number and far too small for the other.
#[test]
fn numbers_are_learnt_in_their_own_units() {
    let names = ["small", "large"].map(str::to_owned);
    let data = data(|greys| vec![greys[0] as f32 * 1e-6, 2000.0 + greys[1] as f32 * 10.0 - greys[2] as f32]);
    let rows: Vec<Vec<f32>> = (0..data.train.len()).map(|index| data.train.targets(index)).collect();
    let statistics = TargetStatistics::of(rows.iter().map(Vec::as_slice), 2).unwrap();
    for loss in [RegressionLoss::Squared, RegressionLoss::Absolute, RegressionLoss::Huber(0.5)] {
        let (records, predictions) = fit(Regression::new(&names, loss, statistics.clone()), &data);
        let figures = RegressionFigures::of(&predictions, &targets(&data), 2);
        assert!(figures.r2 > Some(0.98), "{loss:?}: {figures:?} {records:?}");
        let [small, large] = [&figures.per_output[0], &figures.per_output[1]];
        assert!(small.mae < 1e-5 && large.mae < 100.0, "{loss:?}: {figures:?}");
        // The loss is of what the model learns, whose std is 1.
        if loss == RegressionLoss::Squared {
            let errors =
                figures.per_output.iter().zip(&statistics.std).map(|(output, std)| (output.rmse / std).powi(2));
            let mean = errors.sum::<f64>() / 2.0;
            assert!((records[19].val_loss - mean).abs() < 1e-2 * mean, "{records:?} {mean}");
        }
    }
}

/// Of ten images one is of the second class, which counts nine times as much in training, and as all others in validation.
#[test]
fn weights_of_classes_change_training_alone() {
    let data = data(|_| Vec::new());
    let names = ["dark", "bright"].map(str::to_owned);
    let data = TrainingData::of_classes(names.to_vec(), data.train, data.validation);
    let mut images = [0; 2];
    (0..data.train.len()).for_each(|index| images[data.train.label(index)] += 1);
    let weights = balanced_weights(&images);
    assert!(weights[1] > 5.0 * weights[0], "{weights:?}");
    let still = |task: Classification| {
        let folder = tempfile::tempdir().unwrap();
        let config = TrainConfig { lr: 1e-12, epochs: 1, ..config(&folder.path().join("run")) };
        let mut records = Records::default();
        Trainer::new(config, cpu(1)).task(task).callback(&mut records).fit("net", &net, &data).unwrap();
        records.0.remove(0)
    };
    let plain = still(Classification::new(&names));
    let weighted = still(Classification::new(&names).weights(weights.clone()));
    assert_eq!(weighted.val_loss, plain.val_loss);
    assert!((weighted.train_loss - plain.train_loss).abs() > 1e-3, "{weighted:?} {plain:?}");
    for task in
        [Classification::new(&names).weights(weights.clone()), Classification::new(&names).weights(weights).focal(2.0)]
    {
        let (records, _) = fit(task, &data);
        assert_eq!(records[19].val_accuracy, Some(1.0), "{records:?}");
    }
}
