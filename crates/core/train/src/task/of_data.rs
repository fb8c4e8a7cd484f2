//! The task that data have, as the settings of a run want it.

use std::sync::Arc;

use enmasse_data::Dataset;
use enmasse_datasets::TaskKind;
use enmasse_graph::losses::Asymmetric;

use super::{
    Classification, MultiLabel, MultiLabelLoss, Regression, RegressionLoss, TargetStatistics, Task, balanced_weights,
    positive_weights, scaled_weights,
};
use crate::config::{ClassWeights, LossKind};
use crate::{ConfigError, RunConfig, TrainConfig, TrainError, TrainingData};

/// The task of these data. Weights of classes and the statistics of numbers come from the training part. A setting that does not fit
/// the data is an error.
pub(crate) fn of_data(data: &TrainingData, config: &TrainConfig) -> Result<Arc<dyn Task>, TrainError> {
    let refuse = |name: &str, reason: String| -> TrainError {
        ConfigError::setting(&RunConfig { train: config.clone(), ..RunConfig::default() }, name, reason).into()
    };
    let other = |words: &str| refuse("loss", format!("is no loss of {}: use {words}", data.task));
    let images: Vec<u64> = data.class_counts(data.train.as_ref()).into_iter().map(|count| count as u64).collect();
    let own_weights = |path| ClassWeights::read(path, &data.classes).map_err(|reason| refuse("class_weights", reason));
    let gamma = config.focal_gamma as f32;
    match data.task {
        TaskKind::Classification => {
            let mut task = Classification::new(&data.classes);
            match config.loss {
                None | Some(LossKind::CrossEntropy) => {}
                Some(LossKind::Focal) => task = task.focal(gamma),
                Some(_) => return Err(other("cross-entropy or focal")),
            }
            Ok(Arc::new(match &config.class_weights {
                None => task,
                Some(ClassWeights::Balanced) => task.weights(balanced_weights(&images)),
                Some(ClassWeights::File(path)) => {
                    let scaled = scaled_weights(&own_weights(path)?, &images);
                    let none = || refuse("class_weights", "gives no training image a weight above 0".to_owned());
                    task.weights(scaled.ok_or_else(none)?)
                }
            }))
        }
        TaskKind::MultiLabel => {
            let weights = match &config.class_weights {
                None => None,
                Some(ClassWeights::Balanced) => Some(positive_weights(&images, data.train.len() as u64)),
                Some(ClassWeights::File(path)) => {
                    Some(own_weights(path)?.iter().map(|&weight| weight as f32).collect())
                }
            };
            let loss = match (config.loss, weights) {
                (None | Some(LossKind::Binary), None) => MultiLabelLoss::Binary,
                (None | Some(LossKind::Binary), Some(weights)) => MultiLabelLoss::Weighted(weights),
                (Some(LossKind::Focal | LossKind::Asymmetric), Some(_)) => {
                    let reason = "are those of bce: this loss has its own; leave them out".to_owned();
                    return Err(refuse("class_weights", reason));
                }
                (Some(LossKind::Focal), None) => MultiLabelLoss::Focal { alpha: None, gamma },
                (Some(LossKind::Asymmetric), None) => MultiLabelLoss::Asymmetric(Asymmetric::default()),
                (Some(_), _) => return Err(other("bce, focal or asymmetric")),
            };
            Ok(Arc::new(MultiLabel::new(&data.classes, loss)))
        }
        TaskKind::Regression => {
            let loss = match config.loss {
                None | Some(LossKind::Squared) => RegressionLoss::Squared,
                Some(LossKind::Absolute) => RegressionLoss::Absolute,
                Some(LossKind::Huber) => RegressionLoss::Huber(config.huber_delta as f32),
                Some(_) => return Err(other("mse, l1 or huber")),
            };
            if config.class_weights.is_some() {
                return Err(refuse("class_weights", "numbers have no classes: leave it out".to_owned()));
            }
            let statistics = statistics(data.train.as_ref(), data.classes.len());
            let none = || refuse("task", "the numbers of the training images are not finite".to_owned());
            Ok(Arc::new(Regression::new(&data.classes, loss, statistics.ok_or_else(none)?)))
        }
    }
}

/// The task of a run that is used, not trained: its loss is only reported, without weights.
pub(crate) fn of_run(
    kind: TaskKind,
    classes: &[String],
    statistics: Option<TargetStatistics>,
) -> Option<Arc<dyn Task>> {
    Some(match kind {
        TaskKind::Classification => Arc::new(Classification::new(classes)),
        TaskKind::MultiLabel => Arc::new(MultiLabel::new(classes, MultiLabelLoss::Binary)),
        TaskKind::Regression => Arc::new(Regression::new(classes, RegressionLoss::Squared, statistics?)),
    })
}

fn statistics(images: &dyn Dataset, outputs: usize) -> Option<TargetStatistics> {
    let rows: Vec<Vec<f32>> = (0..images.len()).map(|index| images.targets(index)).collect();
    TargetStatistics::of(rows.iter().map(Vec::as_slice), outputs)
}
